"""A budget for one deployment: memory from the question or the GPU, dtype and formats resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.vllm.dtype import resolve_dtype
from quantplan.dispatch.vllm.names import quantization_config
from quantplan.planner.budget import Budget, make_budget
from quantplan.planner.sizes import parse_size
from quantplan.tables.errors import UsageError

ASSUMED_CAPABILITY = 90
"""Stands for the GPU when only its memory is given; decides bfloat16 and nothing else here."""

ONLINE_FORMATS = {"fp8": "fp8-dynamic", "fp8_per_tensor": "fp8-dynamic",
                  "fp8_per_block": "fp8-block", "fp8_per_channel": "ct-fp8-dynamic"}
"""--quantization of a 16-bit checkpoint -> the format whose parameters weigh the same."""


def deployed_budget(
    checkpoint: Checkpoint, table: Mapping[str, Any], deployment: Deployment, gpu: Gpu | None,
    *, gpu_mem: str | int | None, utilization: float | None,
) -> Budget:
    """Return the budget of `checkpoint` under `deployment`.

    Raises UsageError when no memory is known or --quantization cannot be weighed, and what
    make_budget raises.
    """
    memory_bytes, source, kind = _memory(gpu, gpu_mem)
    device = gpu or Gpu("the GPU", ASSUMED_CAPABILITY)
    checkpoint = _online(checkpoint, deployment.quantization)
    return make_budget(
        checkpoint, model_structure(checkpoint), memory_bytes=memory_bytes, memory_source=source,
        memory_kind=kind, tp=deployment.tp,
        utilization=table["defaults"]["gpu_memory_utilization"] if utilization is None
        else utilization,
        dtype=resolve_dtype(checkpoint.text_config, device, deployment.dtype),
        kv_cache_dtype=deployment.kv_cache_dtype,
        quantized=_quantized(checkpoint, table, device, deployment))


def _memory(gpu: Gpu | None, gpu_mem: str | int | None) -> tuple[int, str, str]:
    if gpu_mem is not None:
        return parse_size(str(gpu_mem), "--gpu-mem"), "--gpu-mem as given", "exact"
    if gpu is None or gpu.memory_bytes is None:
        name = gpu.name if gpu else "this GPU"
        raise UsageError(f"the memory of {name} is not known", wanted="--gpu-mem, such as 24GiB")
    driver = (gpu.memory_kind or "").startswith("driver")
    source = f"{gpu.name}, {'as the driver reports it' if driver else 'by its label'}"
    return gpu.memory_bytes, source, "measured" if driver else "spec"


def _online(checkpoint: Checkpoint, requested: str | None) -> Checkpoint:
    own, _ = quantization_config(checkpoint)
    if requested is None or own is not None:
        return checkpoint
    if requested not in ONLINE_FORMATS:
        raise UsageError(f"--quantization {requested} cannot be weighed",
                         wanted="one of " + ", ".join(ONLINE_FORMATS),
                         hint="`quantplan explain` says what the engine does with it.")
    from quantplan.dispatch.formats import as_format

    return as_format(checkpoint, ONLINE_FORMATS[requested])


def _quantized(
    checkpoint: Checkpoint, table: Mapping[str, Any], gpu: Gpu, deployment: Deployment
) -> Callable[[str, int], bool] | None:
    """Return which layers the engine quantizes, from its own skip rules, when no header says."""
    if checkpoint.tensors is not None or quantization_config(checkpoint)[0] is None:
        return None
    from quantplan.dispatch.resolve import resolve

    trace = resolve(checkpoint, table, gpu, deployment)
    if trace.error:
        return None
    plain = {layer.path for layer in trace.layers if (layer.method or "").startswith("Unq")}
    return lambda path, index: path.replace("*", str(index)) not in plain
