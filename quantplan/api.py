"""The public Python API: each function has the options of its command and returns plain records."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.resolve import resolve
from quantplan.dispatch.time_limit import limited
from quantplan.dispatch.trace import Trace
from quantplan.options import backend_name, checked, method_name
from quantplan.stand_in import assumed, open_table
from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple


class Explanation(NamedTuple):
    """What one engine version would do with a model on a GPU, with the question it answers."""

    checkpoint: Checkpoint
    gpu: Gpu
    deployment: Deployment
    trace: Trace

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready data (reports/schema/explain.v1.json)."""
        from quantplan.reports.explain_view import explain_view

        return explain_view(self.checkpoint, self.gpu, self.deployment, self.trace)


def explain(
    model: str | os.PathLike[str] | Mapping[str, Any],
    *,
    engine: str = "vllm",
    engine_version: str | None = None,
    gpu: str | None = None,
    capability: str | int | float | None = None,
    tp: int = 1,
    dtype: str | None = None,
    quantization: str | None = None,
    quantization_config: Mapping[str, Any] | None = None,
    kv_cache_dtype: str | None = "auto",
    env: Mapping[str, str] | None = None,
    libs: Mapping[str, bool | str | None] | None = None,
    linear_backend: str | None = None,
    linear_backend_per_quant: Mapping[str, str] | None = None,
    moe_backend: str | None = None,
    enable_expert_parallel: bool = False,
    dp: int = 1,
    allow_deprecated_quantization: bool = False,
    trust_remote_code: bool = False,
    attention_backend: str | None = None,
    attention_config: Mapping[str, Any] | None = None,
    mm_encoder_attn_backend: str | None = None,
    mm_encoder_attn_dtype: str | None = None,
    kv_cache_dtype_skip_layers: Sequence[str] = (),
    block_size: int | None = None,
    fp8_gemm_backend: str | None = None,
    fp4_gemm_backend: str | None = None,
    prefill_attention_backend: str | None = None,
    decode_attention_backend: str | None = None,
    mm_attention_backend: str | None = None,
    page_size: int | None = None,
    tensors: Mapping[str, Any] | None = None,
    side_files: Mapping[str, Any] | None = None,
    revision: str | None = None,
    as_format: str | None = None,
    assume_nearest: bool = False,
) -> Explanation:
    """Return what `engine` would do with `model`: method, kernel and mode per layer, and why.

    `model` is a folder, a config.json, a hub id, a bundled name, or the parsed config.json, for
    which `tensors` ({name: dtype} or {name: (dtype, shape)}) stands for the safetensors headers and
    `side_files` ({file name: content}) for the other JSON files. Without `gpu` and `capability`
    this machine's GPU is asked. `engine_version` None is the engine's default version; one without
    a table is refused, or with `assume_nearest` answered from the nearest table, and the answer
    says so. Raises QuantplanError subclasses (UsageError, CheckpointError,
    NotKnownError), each with the exit code of the command line.
    """
    deployment = asked_deployment(checked(**locals()))
    checkpoint = open_model(model, tensors=tensors, side_files=side_files, revision=revision,
                            as_format=as_format)
    device = open_gpu(gpu, capability)
    table = open_table(engine, engine_version, assume_nearest)
    with limited():
        trace = resolve(checkpoint, table, device, deployment)
    return Explanation(checkpoint, device, deployment, assumed(trace, engine_version))


def asked_deployment(options: Mapping[str, Any]) -> Deployment:
    """Return the engine's command line of checked options, each as the engine reads it: names of
    its own, and its default where the caller gives none."""
    given = {OWN_NAMES.get(name, name): value for name, value in options.items()
             if value is not None}
    read = {name: READ[name](given[name]) if name in READ else given[name]
            for name in Deployment._fields if name in given}
    return Deployment(**read)


OWN_NAMES: Mapping[str, str] = {"enable_expert_parallel": "expert_parallel"}
"""Option -> field of Deployment, where they differ."""
READ: Mapping[str, Callable[[Any], Any]] = {
    "quantization": method_name, "linear_backend": backend_name, "moe_backend": backend_name,
    "attention_config": dict, "kv_cache_dtype_skip_layers": tuple, "env": dict, "libs": dict}
"""Field -> how the engine reads what is given."""


def open_model(
    model: str | os.PathLike[str] | Mapping[str, Any],
    *,
    tensors: Mapping[str, Any] | None = None,
    side_files: Mapping[str, Any] | None = None,
    revision: str | None = None,
    as_format: str | None = None,
) -> Checkpoint:
    """Return the checkpoint that MODEL names, or a hypothetical one of it in `as_format`."""
    checkpoint = read_checkpoint(model, tensors=tensors, side_files=side_files, revision=revision)
    if as_format is None:
        return checkpoint
    from quantplan.dispatch.formats import as_format as in_format

    return in_format(checkpoint, as_format)


def open_gpu(gpu: str | None, capability: str | int | float | None) -> Gpu:
    """Return the GPU asked about: by name, by capability, or this machine's own."""
    if gpu is not None and capability is not None:
        raise UsageError("--gpu and --capability name two GPUs", wanted="one of them")
    if gpu is not None:
        from quantplan.dispatch.gpu import find_gpu

        return find_gpu(gpu)
    if capability is not None:
        from quantplan.dispatch.gpu import capability_gpu

        return capability_gpu(str(capability))
    from quantplan.dispatch.gpu_probe import probe_gpu

    return probe_gpu()
