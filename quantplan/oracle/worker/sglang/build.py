"""One question: SGLang's own start-up of a model folder, up to layers whose weights were prepared
and which were run, all without values."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from quantplan.oracle.worker.faults import described, not_the_engines
from quantplan.oracle.worker.folder import write_folder
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.sglang.groups import form_groups
from quantplan.oracle.worker.sglang.layers import layers_of
from quantplan.oracle.worker.sglang.leaves import Leaves
from quantplan.oracle.worker.sglang.meta import without_device

PACKAGE = "sglang/srt/"
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k",
                     "moe_topk")
"""Fields of a text config for which the scheduler sets the experts' runner up
(managers/scheduler.py:Scheduler.init_moe_gemm_config)."""
OWN_LOADER = "bitsandbytes"
"""The method whose weights a loader of its own reads."""


class Asked:
    """One question on its way through the engine, and what is known of the answer so far."""

    def __init__(self, question: Mapping[str, Any], folder: str) -> None:
        self.question, self.folder = question, folder
        self.stage = "server_args"
        self.layer: str | None = None
        self.answer: dict[str, Any] = {}


def answer(question: Mapping[str, Any], leaves: Leaves, absent: frozenset[str]) -> dict[str, Any]:
    """Return the engine's answer: outcome ok, error (the engine's own) or untold with a reason."""
    folder = tempfile.mkdtemp(prefix="quantplan-verify-")
    asked = Asked(question, os.path.join(folder, "model"))
    try:
        write_folder(asked.folder, question)
        _start(asked, leaves)
        return {"outcome": "ok", **asked.answer}
    except (Exception, SystemExit) as error:
        found = described(error, asked.stage, asked.layer, asked.folder, PACKAGE)
        why = not_the_engines(error, found["message"], absent)
        if why:
            return {"outcome": "untold", "reason": why, "error": found}
        return {"outcome": "error", **asked.answer, "error": found}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(asked: Asked, leaves: Leaves) -> None:
    context = imported("sglang.srt.runtime_context")
    context.reset_context()
    arguments = imported("sglang.srt.server_args").ServerArgs(
        model_path=asked.folder, tokenizer_path=asked.folder,
        **{"trust_remote_code": False, **asked.question["flags"]})
    arguments.resolve_once()
    _check_adapters(arguments)
    asked.stage = "publish"
    context.publish(arguments, role="scheduler",
                    ranks=context.SpawnRanks(world_rank=0, gpu_id=0))
    form_groups()
    asked.stage = "model_config"
    config = _second_reading(arguments, context.get_model())
    asked.stage = "gemm_config"
    _set_products_up(config)
    asked.answer |= _resolved(config, context)
    asked.stage = "load_model_dtype"
    imported("sglang.srt.model_executor.model_runner_components.load_model_utils"
             ).maybe_downgrade_dtype_for_legacy_gpu(model_config=config)
    asked.answer["dtype"] = _name(config.dtype)
    asked.answer["page_size"] = imported(
        "sglang.srt.arg_groups.overrides").resolution_result(arguments, "page_size")
    model = _model(asked, config)
    _read_cache_dtype(asked, config, context, model)
    asked.stage = "process_weights"
    asked.answer["layers"] = layers_of(model, config.dtype, leaves, asked)


def _check_adapters(arguments: Any) -> None:
    """Do what the server checks of runners for adapters once arguments are resolved
    (arg_groups/lora_hook.py), in versions that have them."""
    hook = imported("sglang.srt.arg_groups.lora_hook")
    getattr(hook, "check_lora_moe_runner_args", lambda arguments: None)(arguments)


def _second_reading(arguments: Any, model: Any) -> Any:
    """Return the config as the model worker reads it: what an architecture's own pass wrote into
    the server's arguments counts as typed there (managers/tp_worker.py)."""
    return imported("sglang.srt.configs.model_config").ModelConfig.from_server_args(
        arguments, model_path=model.model_path, model_revision=model.revision)


def _set_products_up(config: Any) -> None:
    """Do what the scheduler does of kernels before a model is loaded."""
    layers = "sglang.srt.layers"
    if any(hasattr(config.hf_text_config, name) for name in EXPERTS_PER_TOKEN):
        imported(f"{layers}.moe").initialize_moe_config()
    imported(f"{layers}.quantization.fp8_utils").initialize_fp8_gemm_config()
    imported(f"{layers}.quantization.fp4_utils").initialize_fp4_gemm_config()
    imported(f"{layers}.quantization.unquant").initialize_bf16_gemm_config()


def _resolved(config: Any, context: Any) -> dict[str, Any]:
    """Return what the server made of its arguments."""
    quantization = "sglang.srt.layers.quantization"
    execution = context.get_exec()
    return {
        "method": config.quantization, "dtype": _name(config.dtype),
        "fp8_gemm_backend": imported(
            f"{quantization}.fp8_utils").get_fp8_gemm_runner_backend().value,
        "fp4_gemm_backend": imported(
            f"{quantization}.fp4_utils").get_fp4_gemm_runner_backend().value,
        "moe_backend": execution.moe.moe_runner_backend,
        "attention": {name: _setting(execution, name) for name in (
            "attention_backend", "prefill_attention_backend", "decode_attention_backend")},
        "config_class": None, "min_capability": None,
    }


def _setting(execution: Any, name: str) -> str | None:
    """Return one of the engine's settings, wherever this version keeps it."""
    places = (execution, *(getattr(execution, part, None) for part in (
        "kernel", "attention", "attn")))
    found = next((getattr(place, name) for place in places if hasattr(place, name)), None)
    return None if found is None else str(found)


def _model(asked: Asked, config: Any) -> Any:
    loader = imported("sglang.srt.model_loader.loader")
    asked.stage = "quant_config"
    loading = imported("sglang.srt.configs.load_config").LoadConfig(
        load_format=OWN_LOADER if config.quantization == OWN_LOADER else "auto")
    quantization = loader._get_quantization_config(config, loading)
    if quantization is not None:
        asked.answer |= {"config_class": type(quantization).__name__,
                         "min_capability": quantization.get_min_capability()}
    asked.stage = "build_model"
    default_dtype = imported("sglang.srt.model_loader.utils").set_default_torch_dtype
    with default_dtype(config.dtype), without_device():
        return loader._initialize_model(config, loading, quantization)


def _read_cache_dtype(asked: Asked, config: Any, context: Any, model: Any) -> None:
    configure = imported("sglang.srt.mem_cache.kv_cache_dtype").configure_kv_cache_dtype
    asked.stage = "kv_cache_dtype"
    _, dtype = configure(
        server_args_kv_cache_dtype=context.get_model().kv_cache_dtype, model=model,
        model_dtype=config.dtype, is_draft_worker=False, is_dflash=False,
        speculative_draft_attention_backend=None)
    asked.answer["kv_cache_dtype"] = _name(dtype)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
