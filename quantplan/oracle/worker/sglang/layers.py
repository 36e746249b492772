"""The layers of a model that was built: each prepares its weights and runs once, and says what it
reached."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from quantplan.oracle.worker.faults import not_the_engines
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.sglang.digest import digest
from quantplan.oracle.worker.sglang.leaves import Leaves
from quantplan.oracle.worker.sglang.meta import without_device
from quantplan.oracle.worker.sglang.record import RECORD, ReachedError

TOKENS = 16
"""Rows of the activations."""

ATTENTION = "RadixAttention"
ENCODERS = ("VisionAttention", "Gemma4VisionAttention")
STATES = ("RadixLinearAttention",)
WEIGHTS_OF_EXPERTS = ("w13_weight", "w13_qweight")
NEEDS_LOADED_WEIGHTS = ("BitsAndBytes", "GGUF")
"""Methods that run with what only loading makes."""
FUSED_WITH_ACTIVATION = "weight_swiglu_interleaved"
"""A layer with this has no weight of its own any more: the model calls one operator for the product
and what follows it (models/deepseek_v2.py:DeepseekV2MLP)."""
FUSED_ROW = {"kernel": "nvfp4_gemm_swiglu_nvfp4_quant", "act": "fp4"}


def layers_of(model: Any, dtype: Any, leaves: Leaves, asked: Any) -> list[dict[str, Any]]:
    """Return one row per layer that selection has a say in, in module order. Raises the first
    error of a layer whose weights cannot be prepared; `asked.layer` names it."""
    leaves.replace()
    rows: list[dict[str, Any]] = []
    failed: tuple[str, Exception] | None = None
    for path, layer in model.named_modules():
        kind = type(layer).__name__
        if getattr(layer, "quant_method", None) is None and kind not in (
                ATTENTION, *ENCODERS, *STATES):
            continue
        try:
            rows.append(row_of(path, layer, dtype) | attention_of(layer, asked.answer))
        except Exception as error:
            failed = failed or (path, error)
    if failed is not None:
        asked.layer = failed[0]
        raise failed[1]
    return rows


def row_of(path: str, layer: Any, dtype: Any) -> dict[str, Any]:
    """Return what one layer became. Raises what the preparation of its weights raises."""
    method, kind = getattr(layer, "quant_method", None), type(layer).__name__
    scheme = getattr(layer, "scheme", None) or getattr(method, "scheme", None)
    row = {"path": path, "module": kind, "method": method and type(method).__name__,
           "scheme": scheme and type(scheme).__name__}
    embedding = "Embedding" in kind and "LMHead" not in kind
    if kind in (ATTENTION, *ENCODERS, *STATES):
        return row
    if embedding:
        return {**row, **_sizes(layer)}
    runner = _runner(method, scheme)
    _prepare(method, layer)
    if runner is not None or _is_experts(layer):
        return {**row, "moe_runner_backend": runner}
    return {**row, **_sizes(layer), **_run(method, layer, dtype)}


def attention_of(layer: Any, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the backends of a layer that attends, and the dtype of its cache."""
    kind = type(layer).__name__
    if kind in ENCODERS:
        known = imported("sglang.srt.layers.attention.vision").QKV_BACKEND_IMPL
        return {"attn_backend": next(
            name for name, backend in known.items() if isinstance(layer.qkv_backend, backend))}
    if kind != ATTENTION:
        return {}
    named = answer["attention"]
    prefill, decode = (named[f"{phase}_attention_backend"] or named["attention_backend"]
                       for phase in ("prefill", "decode"))
    return {"attn_backend": decode, "kv_cache_dtype": answer["kv_cache_dtype"],
            "prefill_backend": None if prefill == decode else prefill}


def _sizes(layer: Any) -> dict[str, int | None]:
    """Return the features of this rank."""
    names = (("output_size_per_partition", "num_embeddings_per_partition", "output_size"),
             ("input_size_per_partition", "embedding_dim", "input_size"))
    n, k = (next((getattr(layer, name) for name in group if hasattr(layer, name)), None)
            for group in names)
    return {"n": n, "k": k}


def _is_experts(layer: Any) -> bool:
    return "MoE" in type(layer).__name__ or any(
        hasattr(layer, name) for name in WEIGHTS_OF_EXPERTS)


def _runner(method: Any, scheme: Any) -> str | None:
    """Return the backend of the experts' runner, None where there is no runner."""
    for holder in (method, scheme, getattr(scheme, "kernel", None)):
        runner = getattr(holder, "runner", None)
        if runner is not None:
            backend = getattr(runner, "runner_backend", None)
            return str(getattr(backend, "value", None))
    return None


def _prepare(method: Any, layer: Any) -> None:
    with without_device(watched=True), suppress(ReachedError):
        method.process_weights_after_loading(layer)


def _run(method: Any, layer: Any, dtype: Any) -> dict[str, Any]:
    """Return what the layer's product is, as far as it gets without values."""
    weight = getattr(layer, "weight", None)
    if hasattr(layer, FUSED_WITH_ACTIVATION):
        return FUSED_ROW
    if type(method).__name__.startswith(NEEDS_LOADED_WEIGHTS) or getattr(weight, "ndim", 2) == 3:
        return {}
    torch, width = imported("torch"), _sizes(layer)["k"]
    RECORD.begin()
    error = None
    with without_device(watched=True):
        try:
            method.apply(layer, torch.empty((TOKENS, width), dtype=dtype, device="meta"), None)
        except ReachedError:
            pass
        except Exception as raised:
            if not_the_engines(raised, str(raised), frozenset()) is None:
                error = f"{type(raised).__name__}: {raised}"
    return {**digest(RECORD.steps), "forward_error": error}
