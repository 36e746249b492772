"""The caches of a model's layers on one rank: what each keeps of a token, or its whole state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, MemoryFlags
from quantplan.dispatch.shard import heads_divide, kv_heads_per_rank
from quantplan.dispatch.structure import Module, Structure
from quantplan.dispatch.trace import Layer, Trace
from quantplan.dispatch.vllm.attention_facts import window_of
from quantplan.dispatch.weight_format import Config, quantization_config
from quantplan.planner.cuts import uneven
from quantplan.planner.kv_blocks import Cached
from quantplan.planner.kv_spec import CHUNK, FULL, STATE, WINDOW, Spec
from quantplan.planner.kv_states import Sharing, state_bytes
from quantplan.planner.parts import model_bits
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import NotKnownError
from quantplan.tables.kv_cache_rows import kv_rows
from quantplan.tables.versions import version_key

Row = Mapping[str, Any]
HOLDING = ("attention", "mla", "part")
"""Kinds of modules that may hold a cache; others of their classes are weights."""
INDEXES = ("index_keys", "index_vectors")


class Question:
    """What decides the caches: the model, the engine's answer and the deployment."""

    def __init__(
        self, checkpoint: Checkpoint, structure: Structure, deployment: Deployment,
        flags: MemoryFlags, *, version: str, dtype: str,
    ) -> None:
        self.config = checkpoint.text_config
        self.structure, self.tp = structure, deployment.tp
        self.version, self.dtype = version, dtype
        self.asked = resolved_kv_dtype(checkpoint.served_config, deployment.kv_cache_dtype)
        self.answers: dict[tuple[str, int | None], Layer] = {}
        self.drafts = (flags.speculative_config or {}).get("num_speculative_tokens") or 0

    def hear(self, trace: Trace | None) -> None:
        """Take the engine's answer for every layer, where it has one."""
        if trace is not None and not trace.error:
            self.answers = {(layer.path, layer.layer_index): layer for layer in trace.layers}

    def answer(self, module: Module, index: int | None) -> Layer:
        """Return the engine's layer of a module, an empty one where it has none."""
        path = module.path_at(index)
        return self.answers.get((path, index)) or Layer(path, module.module)


def cached_layers(question: Question) -> list[Cached]:
    """Return the caches in the order in which the engine registers them, those of layers that use
    another layer's left out.

    Raises NotKnownError naming a module class or dtype without a row, UsageError for heads that do
    not divide over the ranks.
    """
    rows = kv_rows("caches", "module")
    found = []
    for module, index in question.structure.sites():
        row = rows.get(module.module)
        if module.kind not in HOLDING:
            continue
        if row is None:
            _check_known(module)
        elif row["holds"] != "nothing" and not module.facts.get("kv_shared") and (
                module.stack == "text" and module.facts.get("causal") is not False):
            found.append(_cached(question, module, index, row))
    found = [layer for layer in found if layer.spec.shape[:1] != ("compressed",)
             or layer.spec.tokens_per_row > 1]
    return _marked(found, question)


def _check_known(module: Module) -> None:
    """Refuse a part of the language model that may keep something."""
    if module.stack == "text":
        raise NotKnownError(f"what the KV cache holds for {module.module}",
                            hint="A row of caches in tables/kv/vllm.yaml teaches it.")


def _cached(question: Question, module: Module, index: int | None, row: Row) -> Cached:
    answer = question.answer(module, index)
    name = module.path_at(index)
    if row["holds"] == "attention":
        return Cached(name, _attention(question, module, answer), answer.attn_backend)
    if row["holds"] == "latent":
        return Cached(name, _latent(question, module, answer), answer.attn_backend)
    if row["holds"] in INDEXES:
        return Cached(name, _index(question, module, row), answer.attn_backend)
    if row["holds"].startswith("compress"):
        from quantplan.planner.kv_compressed import PACKED, compressed_spec

        own = PACKED if question.asked == "auto" else question.asked
        dtype = next((layer.kv_cache_dtype for layer in question.answers.values()
                      if layer.kv_cache_dtype), own)
        return Cached(name, compressed_spec(module, index or 0, row, question.config, str(dtype)),
                      answer.attn_backend)
    size = state_bytes(question.structure, module, row, question.config,
                       Sharing(question.dtype, question.tp, question.drafts))
    kept = "checkpoint_since" in row and (
        version_key(question.version) >= version_key(row["checkpoint_since"]))
    return Cached(name, Spec(STATE, 1, size, (row["holds"],), checkpoints=int(kept)))


def _index(question: Question, module: Module, row: Row) -> Spec:
    """Return an indexer's keys: in FP8 with a scale for every group, or in the model's dtype."""
    dim = module.facts["head_dim"]
    size = (dim + dim // row["scale_group"] * 4 if "scale_group" in row
            else dim * model_bits(question.dtype) // 8)
    return Spec(FULL, 1, size, (row["holds"],), latent=True)


def _attention(question: Question, module: Module, answer: Layer) -> Spec:
    own, tp = module.facts, question.tp
    if not heads_divide(own["heads"], own["kv_heads"], tp):
        raise uneven("attention", tp, f"{own['heads']} query and {own['kv_heads']} KV heads")
    heads, dim = kv_heads_per_rank(own["kv_heads"], tp), own["head_dim"]
    value_dim = own.get("v_head_dim", dim)
    dtype = answer.kv_cache_dtype or question.asked
    row_bytes = heads * head_bytes(dtype, dim, value_dim, question.dtype)
    window, chunk = window_of(question.structure, own), own.get("chunk")
    kind = CHUNK if chunk else WINDOW if window is not None else FULL
    return Spec(kind, 1, row_bytes, (heads, dim, value_dim, dtype), chunk or window)


def _latent(question: Question, module: Module, answer: Layer) -> Spec:
    own = module.facts
    dtype = answer.kv_cache_dtype or question.asked
    row = _dtype_row(dtype)
    size = row.get("token_bytes") or head_bytes(dtype, own["head_dim"], 0, question.dtype)
    window = own.get("window")
    return Spec(FULL if window is None else WINDOW, 1, size, ("latent", dtype), window,
                latent=True)


def head_bytes(dtype: str, dim: int, value_dim: int, model_dtype: str) -> int:
    """Return the bytes of a key of `dim` and a value of `value_dim` elements in a cache dtype,
    packed as its kernel packs them; raise NotKnownError for a dtype without a row."""
    row = _dtype_row(dtype)
    if "token_bytes" in row:
        raise NotKnownError(f"keys and values in {dtype}", hint="It is for latent attention.")
    own = model_bits(model_dtype)
    size = _side(row, "key", dim, own) + (_side(row, "value", value_dim, own) if value_dim else 0)
    return size + size % 2 if row.get("even") else size


def _side(row: Row, side: str, dim: int, model_bits_: int) -> int:
    scales = dim // row["scale_group"] if "scale_group" in row else 0
    bits: int = row.get(f"{side}_bits", model_bits_)
    extra: int = row.get(f"{side}_extra_bytes", 0)
    return -(-dim * bits // 8) + scales + extra


def _dtype_row(dtype: str) -> Row:
    rows = kv_rows("dtypes", "id")
    if dtype not in rows:
        raise NotKnownError(f"bytes per token of the KV cache dtype {dtype!r}",
                            wanted="one of " + ", ".join(rows),
                            hint="A row of dtypes in tables/kv/vllm.yaml teaches it.")
    return rows[dtype]


def _marked(layers: list[Cached], question: Question) -> list[Cached]:
    """Return the layers with those marked that keep the model's dtype beside quantized ones."""
    dtypes = {layer.name: layer.spec.shape[-1] for layer in layers
              if len(layer.spec.shape) > 1}
    if not any(dtype not in {"auto", question.dtype} for dtype in dtypes.values()):
        return layers
    return [layer._replace(plain=dtypes.get(layer.name) == "auto") for layer in layers]


def resolved_kv_dtype(config: Config, requested: str) -> str:
    """Return the requested KV cache dtype, or what the checkpoint's KV scheme makes of auto."""
    from quantplan.dispatch.vllm.kv_cache import kv_dtype
    from quantplan.dispatch.vllm.modelopt_config import kv_cache_dtype

    section = quantization_config(config) or {}
    method = _method(section)
    scheme = section.get("kv_cache_scheme") if method == "compressed-tensors" else None
    own = kv_cache_dtype(load_engine("vllm"), section, method)
    return kv_dtype(requested, scheme, own)


def _method(section: Config) -> str:
    """Return the quant_method of a config, "" where the engine refuses to name one."""
    from quantplan.dispatch.trace import Refusal
    from quantplan.dispatch.vllm.quant_config import producer_method

    try:
        named = producer_method(load_engine("vllm"), section)
    except Refusal:
        return ""
    return named or str(section.get("quant_method", ""))


def indexed(layers: Mapping[str, Spec]) -> Iterator[tuple[str, int]]:
    """Yield every layer's name with the decoder layer that it is in."""
    for name in layers:
        yield name, next((int(part) for part in name.split(".") if part.isdecimal()), 0)
