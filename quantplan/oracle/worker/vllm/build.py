"""One question: the engine's own start-up of a model folder, up to the model with meta tensors."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from quantplan.oracle.worker.faults import described, not_the_engines
from quantplan.oracle.worker.folder import write_folder
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.vllm.describe import layers_of, rejected
from quantplan.oracle.worker.vllm.groups import form_groups
from quantplan.oracle.worker.vllm.watch import Watch

PACKAGE = "vllm/"
CONTEXT_LENGTH = 2048
"""Tokens asked for: selection reads no context length, and long ones only cost time."""


class Asked:
    """One question on its way through the engine, and what is known of the answer so far."""

    def __init__(self, question: Mapping[str, Any], folder: str) -> None:
        self.question, self.folder = question, folder
        self.stage = "engine_args"
        self.answer: dict[str, Any] = {}


def answer(question: Mapping[str, Any], watch: Watch, absent: frozenset[str]) -> dict[str, Any]:
    """Return the engine's answer: outcome ok, error (the engine's own) or untold with a reason."""
    folder = tempfile.mkdtemp(prefix="quantplan-verify-")
    asked = Asked(question, os.path.join(folder, "model"))
    watch.begin()
    try:
        write_folder(asked.folder, question)
        _start(asked, watch)
        return {"outcome": "ok", **asked.answer}
    except Exception as error:
        found = described(error, asked.stage, watch.failed, asked.folder, PACKAGE)
        why = not_the_engines(error, found["message"], absent)
        if why:
            return {"outcome": "untold", "reason": why, "error": found}
        lists = [note for note in watch.notes if note.kind == "list"]
        turned_down = list(rejected(lists[-1].names, _last_layer(watch), None)) if lists else []
        return {"outcome": "error", **asked.answer, "error": {**found, "rejected": turned_down}}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _last_layer(watch: Watch) -> list[Any]:
    last = watch.notes[-1].layer
    return [note for note in watch.notes if note.layer == last]


def _start(asked: Asked, watch: Watch) -> None:
    arguments = imported("vllm.engine.arg_utils")
    found = arguments.EngineArgs(**_flags(asked))
    asked.stage = "engine_config"
    config = found.create_engine_config()
    asked.answer |= _settled(config)
    asked.stage = "model_build"
    form_groups(config.parallel_config)
    asked.answer["layers"] = layers_of(_build(config), watch)


def _flags(asked: Asked) -> dict[str, Any]:
    longest = asked.question["config"].get("max_position_embeddings")
    flags = {"model": asked.folder, "skip_tokenizer_init": True, "load_format": "dummy",
             "enforce_eager": True, "disable_log_stats": True,
             "max_model_len": min(longest, CONTEXT_LENGTH) if type(longest) is int
             else CONTEXT_LENGTH, **asked.question["flags"]}
    if flags.get("tensor_parallel_size", 1) > 1:
        flags.setdefault("distributed_executor_backend", "mp")
    return flags


def _settled(config: Any) -> dict[str, Any]:
    """Return what stands before the model is built."""
    quantization = config.quant_config
    return {
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "method": config.model_config.quantization,
        "config_class": None if quantization is None else type(quantization).__name__,
        "min_capability": None if quantization is None else quantization.get_min_capability(),
        "cache_dtype": config.cache_config.cache_dtype,
        "dtype_refused": _dtype_refused(config.model_config.dtype),
    }


def _dtype_refused(dtype: Any) -> str | None:
    """Return the worker's own refusal of a dtype: it comes before the model is built, but in
    another process than the configuration's."""
    try:
        imported("vllm.platforms").current_platform.check_if_supports_dtype(dtype)
    except ValueError as error:
        return str(error)
    return None


def _build(config: Any) -> Any:
    torch = imported("torch")
    loading = imported("vllm.model_executor.model_loader.utils")
    dtypes = imported("vllm.utils.torch_utils")
    workspace = imported("vllm.v1.worker.workspace")
    # Indexes that a constructor looks for in a tensor without values: as if all were there.
    imported("torch.fx.experimental._config").meta_nonzero_assume_all_nonzero = True
    workspace._manager = None
    workspace.init_workspace_manager(torch.device("meta"))
    with ExitStack() as stack:
        stack.enter_context(dtypes.set_default_torch_dtype(config.model_config.dtype))
        stack.enter_context(torch.device("meta"))
        stack.enter_context(_no_allocation(torch))
        return loading.initialize_model(config)


def _no_allocation(torch: Any) -> Any:
    """Return a torch mode under which tensors asked for on a GPU become meta tensors, and values
    read from meta tensors (for logs, and constants of activations) are ones."""
    mode = imported("torch.overrides").TorchFunctionMode

    def redirected(self: Any, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        if function is torch.device and given and type(given[0]) is int:
            return torch.device("cuda", given[0])
        if function in (torch.Tensor.cpu, torch.Tensor.item) and given[0].is_meta:
            value = torch.ones(given[0].shape, dtype=given[0].dtype, device="cpu")
            return value if function is torch.Tensor.cpu else value.item()
        device = named.get("device")
        if type(device) is int or str(device).startswith("cuda"):
            named["device"] = torch.device("meta")
        return function(*given, **named)
    return type("NoAllocation", (mode,), {"__torch_function__": redirected})()
