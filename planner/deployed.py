"""A budget for one deployment: memory from the question or the GPU, dtype and formats resolved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import AUTO_LENGTH, Checkpoint, Deployment, Gpu, MemoryFlags, Note
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.resolve import resolve
from quantplan.dispatch.trace import Refusal, Trace
from quantplan.dispatch.vllm.dtype import NAMES, resolve_dtype
from quantplan.dispatch.vllm.kv_cache import check_kv_flag
from quantplan.dispatch.vllm.quant_config import quantization_config
from quantplan.planner.budget import (
    ASSUMED_CAPABILITY,
    KV_CACHE,
    Budget,
    EngineRefusal,
    make_budget,
)
from quantplan.planner.sizes import parse_size
from quantplan.tables.errors import EngineRefusalError, NotKnownError, UsageError

GIB_BYTES = 2**30

ONLINE_FORMATS = {"fp8": "fp8-dynamic", "fp8_per_tensor": "fp8-dynamic",
                  "fp8_per_block": "fp8-block", "fp8_per_channel": "ct-fp8-dynamic"}
"""--quantization of a 16-bit checkpoint -> the format whose parameters weigh the same."""

GPU_INDEPENDENT = ("method name", "config fields", "activation dtype", "shapes under TP",
                   "weight loading")
"""Stages whose refusal holds on every GPU."""

NOT_ONE_TOKEN = ("Cannot auto-fit max_model_len: not enough GPU memory available to serve even a "
                 "single token. Try increasing `gpu_memory_utilization`.")
"""vllm 0.32.0 v1/core/kv_cache_utils.py:_auto_fit_max_model_len."""


def deployed_budget(
    checkpoint: Checkpoint, table: Mapping[str, Any], deployment: Deployment, gpu: Gpu | None,
    flags: MemoryFlags, *, gpu_mem: str | int | None, version: str | None = None,
    compare: bool = True,
) -> Budget:
    """Return the budget of `checkpoint` under `deployment` and `flags`, with the engine's refusal
    if it has one there, and with `compare` that of other formats beside it. The memory rules are
    those of `version`, None: the table's.

    Raises UsageError when no memory is known, EngineRefusalError when the engine refuses what
    cannot be weighed either, and what make_budget and resolve raise.
    """
    check_kv_flag(table, deployment.kv_cache_dtype)
    memory_bytes, source, kind = gpu_memory(gpu, gpu_mem)
    device = gpu or Gpu("the GPU", ASSUMED_CAPABILITY)
    trace, gap = _trace(checkpoint, table, device, deployment)
    refusal = start_refusal(trace, gpu)
    weighed = _online(checkpoint, table, deployment.quantization)
    structure = model_structure(weighed, weighed=True)
    left_out = () if structure.left_out is None else (structure.left_out,)
    try:
        found = make_budget(
            weighed, structure, memory_bytes=memory_bytes, memory_source=source,
            memory_kind=kind, dtype=_dtype(table, checkpoint, device, deployment.dtype),
            deployment=deployment, flags=flags, gpu=device, trace=trace,
            version=version or table["version"], quantized=_quantized(weighed, trace),
            compare=compare)
    except UsageError:
        if refusal:
            raise EngineRefusalError(refusal.line(), hint=refusal.hint) from None
        raise
    return found._replace(
        refusal=(refusal or _flags(weighed, found) or _occupied(found, device, gpu_mem)
                 or _short_cache(found)),
        notes=(*left_out, *found.notes, *gap, *_own_rules(found, table["version"])))


def _own_rules(found: Budget, kernels: str) -> Iterator[Note]:
    """Say whose memory rules hold where another version's kernels stand in."""
    if found.version != kernels:
        yield Note("own-memory-rules", f"the memory rules are those of vLLM {found.version}, "
                   f"kernels and methods those of {kernels}", None, "info")


def _occupied(found: Budget, gpu: Gpu, gpu_mem: str | int | None) -> EngineRefusal | None:
    """Return the engine's refusal where this machine's GPU has less free than its share
    (vllm v1/worker/utils.py:request_memory)."""
    free, wanted = gpu.memory_free_bytes, found.engine_memory.bytes
    if gpu_mem is not None or free is None or free >= wanted:
        return None
    share, total = f"{found.utilization:g}, {wanted / GIB_BYTES:.2f} GiB", found.memory.bytes
    return EngineRefusal(
        f"vllm {found.version}", "memory",
        f"Free memory on device cuda:0 ({free / GIB_BYTES:.2f}/{total / GIB_BYTES:.2f} GiB) on "
        f"startup is less than desired GPU memory utilization ({share}). Decrease GPU memory "
        "utilization or reduce GPU memory used by other processes.",
        f"Pass --gpu-memory-utilization {math.floor(free / total * 100) / 100:g} or less.")


def _dtype(table: Mapping[str, Any], checkpoint: Checkpoint, gpu: Gpu, requested: str) -> str:
    """Return the serving dtype, or the requested one where the engine refuses it."""
    try:
        return resolve_dtype(table, checkpoint, gpu, requested)
    except Refusal:
        return NAMES[requested]


def _trace(
    checkpoint: Checkpoint, table: Mapping[str, Any], gpu: Gpu, deployment: Deployment
) -> tuple[Trace | None, tuple[Note, ...]]:
    """Return the engine's own answer, or a note of what the tables lack for it."""
    try:
        return resolve(checkpoint, table, gpu, deployment), ()
    except NotKnownError as error:
        return None, (Note("engine-not-known", "whether the engine starts is not known: "
                           f"{error.what}", error.hint),)


def start_refusal(trace: Trace | None, gpu: Gpu | None) -> EngineRefusal | None:
    """Return why the engine does not start, where that holds for the GPU asked about."""
    if trace is None:
        return None
    engine, error = f"{trace.engine} {trace.version}", trace.error
    found = [EngineRefusal(engine, error.stage, error.message or error.type, error.hint)
             ] if error else []
    found += [EngineRefusal(engine, f.stage, f.message, f.hint)
              for f in trace.findings if f.severity == "error"]
    return next((r for r in found if gpu is not None or r.stage in GPU_INDEPENDENT), None)


def _flags(checkpoint: Checkpoint, found: Budget) -> EngineRefusal | None:
    """Return the engine's first refusal of the memory flags."""
    from quantplan.planner.flag_refusals import STAGE, flag_refusals

    refused = next(flag_refusals(checkpoint, found.deployment, found.flags, found.serving,
                                 found.kv), None)
    return refused and EngineRefusal(f"vllm {found.version}", STAGE, *refused)


def _short_cache(found: Budget) -> EngineRefusal | None:
    """Return the engine's refusal where one request of the longest length does not fit the KV cache
    (vllm v1/core/kv_cache_utils.py:get_kv_cache_configs); None too where the GPU is full before."""
    if found.flags.kv_cache_memory_bytes is None and (
            found.weights.bytes + found.overhead_bytes > found.memory.bytes):
        return None
    largest, engine = found.largest_context, f"vllm {found.version}"
    if found.flags.max_model_len == AUTO_LENGTH:
        return None if largest else EngineRefusal(engine, KV_CACHE, NOT_ONE_TOKEN, None)
    words = found.kv.refusal(found.kv_bytes, found.max_model_len)
    shorter = f"Pass --max-model-len {largest} or less, or auto." if largest else None
    return EngineRefusal(engine, KV_CACHE, words, shorter) if words else None


def gpu_memory(gpu: Gpu | None, gpu_mem: str | int | None) -> tuple[int, str, str]:
    """Return the GPU's bytes, where they are from and how they are known. Raises UsageError where
    nobody says."""
    if gpu_mem is not None:
        return parse_size(str(gpu_mem), "--gpu-mem"), "--gpu-mem as given", "exact"
    if gpu is None or gpu.memory_bytes is None:
        name = gpu.name if gpu else "this GPU"
        raise UsageError(f"the memory of {name} is not known", wanted="--gpu-mem, such as 24GiB")
    driver = (gpu.memory_kind or "").startswith("driver")
    source = f"{gpu.name}, {'as the driver reports it' if driver else 'by its label'}"
    return gpu.memory_bytes, source, "measured" if driver else "spec"


def _online(
    checkpoint: Checkpoint, table: Mapping[str, Any], requested: str | None
) -> Checkpoint:
    """Return the checkpoint as --quantization leaves it in memory."""
    online = {name: row for name, row in table["online_methods"].items() if "linear" in row}
    own, _ = quantization_config(checkpoint)
    if requested is None or own is not None or requested not in {*online, *ONLINE_FORMATS}:
        return checkpoint
    if requested not in ONLINE_FORMATS:
        raise NotKnownError(f"the weight bytes of --quantization {requested}",
                            wanted="one of " + ", ".join(ONLINE_FORMATS),
                            hint="`quantplan explain` says what the engine does with it.")
    from quantplan.dispatch.formats import as_format

    return as_format(checkpoint, ONLINE_FORMATS[requested])


def _quantized(checkpoint: Checkpoint, trace: Trace | None) -> Callable[[str, int], bool] | None:
    """Return which layers the engine quantizes, from its own skip rules, when no header says."""
    named = checkpoint.tensors is not None or quantization_config(checkpoint)[0] is None
    if named or trace is None or trace.error:
        return None
    plain = {layer.path for layer in trace.layers if (layer.method or "").startswith("Unq")}
    return lambda path, index: path.replace("*", str(index)) not in plain
