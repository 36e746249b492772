"""An explanation as plain data: the JSON of `quantplan explain`, and what the text is made from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.summary import starts
from quantplan.dispatch.trace import (
    Candidate,
    EngineError,
    Finding,
    Layer,
    Method,
    Selection,
    Trace,
)

SCHEMA = "quantplan/explain/1"
EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")
"""The number of an expert in a path."""


def explain_view(
    checkpoint: Checkpoint, gpu: Gpu, deployment: Deployment, trace: Trace
) -> dict[str, Any]:
    """Return the explanation as JSON-ready data, by reports/schema/explain.v1.json."""
    return {
        "schema": SCHEMA,
        "model": model_view(checkpoint),
        "engine": engine_view(trace.engine, trace.version, trace.asked),
        "gpu": gpu_view(gpu),
        "deployment": {**deployment_view(deployment), "dtype": trace.dtype},
        "method": method_view(trace.method),
        "kv_cache": dict(trace.kv_cache),
        "outcome": trace.outcome,
        "starts": starts(trace),
        "error": error_view(trace.error),
        "layers": [_layer(layer, indices, trace) for layer, indices in rows(trace.layers)],
        "findings": [_finding(finding) for finding in trace.findings],
    }


def rows(layers: Iterable[Layer]) -> list[tuple[Layer, list[int]]]:
    """Return layers that behave alike once, with the indices that they stand for."""
    found: dict[tuple[Any, ...], tuple[Layer, list[int]]] = {}
    for layer in layers:
        key = (star_path(layer), layer.n, layer.k, layer.method, layer.scheme, layer.mode,
               layer.act, id(layer.selection), layer.kv_cache_dtype, layer.why, layer.moe_backend,
               layer.module, layer.attn_backend, layer.prefill_backend, layer.fused,
               layer.kernel_backend)
        row = found.setdefault(key, (layer, []))
        if layer.layer_index is not None and row[1][-1:] != [layer.layer_index]:
            row[1].append(layer.layer_index)
    return list(found.values())


def star_path(layer: Layer) -> str:
    """Return the layer's path with * for the layer index, and for that of an expert whose products
    are layers of their own."""
    if layer.layer_index is None:
        return layer.path
    before, found, after = f"{layer.path}.".partition(f".{layer.layer_index}.")
    return f"{before}.*.{EXPERT.sub('*', after)}"[:-1] if found else layer.path


def engine_view(name: str, version: str, asked: str | None) -> dict[str, Any]:
    """Return which engine version answers, and which was asked about where it is another one."""
    return {"name": name, "version": version, **({"asked": asked} if asked else {})}


def model_view(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return which checkpoint it is."""
    return {"name": checkpoint.name, "origin": checkpoint.origin,
            "revision": checkpoint.revision, "fetched_bytes": checkpoint.fetched_bytes}


def gpu_view(gpu: Gpu) -> dict[str, Any]:
    """Return which GPU it is."""
    return {"name": gpu.name, "id": gpu.id, "capability": gpu.capability_text,
            "sm_count": gpu.sm_count, "memory_bytes": gpu.memory_bytes,
            "memory_kind": gpu.memory_kind, "origin": gpu.origin}


def deployment_view(deployment: Deployment) -> dict[str, Any]:
    """Return the engine's command line, environment and libraries that were asked about."""
    return {
        "tp": deployment.tp, "dtype_requested": deployment.dtype,
        "quantization": deployment.quantization,
        "quantization_config": dict(deployment.quantization_config or {}),
        "kv_cache_dtype": deployment.kv_cache_dtype,
        "linear_backend": deployment.linear_backend,
        "linear_backend_per_quant": dict(deployment.linear_backend_per_quant or {}),
        "moe_backend": deployment.moe_backend,
        "expert_parallel": deployment.expert_parallel, "dp": deployment.dp,
        "attention_backend": deployment.attention_backend,
        "attention_config": dict(deployment.attention_config),
        "mm_encoder_attn_backend": deployment.mm_encoder_attn_backend,
        "mm_encoder_attn_dtype": deployment.mm_encoder_attn_dtype,
        "kv_cache_dtype_skip_layers": list(deployment.kv_cache_dtype_skip_layers),
        "block_size": deployment.block_size,
        "fp8_gemm_backend": deployment.fp8_gemm_backend,
        "fp4_gemm_backend": deployment.fp4_gemm_backend,
        "prefill_attention_backend": deployment.prefill_attention_backend,
        "decode_attention_backend": deployment.decode_attention_backend,
        "mm_attention_backend": deployment.mm_attention_backend,
        "page_size": deployment.page_size, "env": dict(deployment.env),
        "libs": dict(deployment.libs),
    }


def method_view(method: Method) -> dict[str, Any]:
    """Return how the method's name was found, and what serves it."""
    return {
        "checkpoint": method.checkpoint, "requested": method.requested,
        "resolved": method.resolved, "config_class": method.config_class,
        "min_capability": method.min_capability,
        "steps": [dict(step._asdict()) for step in method.steps],
    }


def error_view(error: EngineError | None) -> dict[str, Any] | None:
    """Return what the engine raises, or None."""
    if error is None:
        return None
    return {"stage": error.stage, "type": error.type, "message": error.message,
            "layer": error.layer, "source": error.source, "hint": error.hint,
            "candidates": _candidates(error.selection), "rejected": _rejected(error.selection)}


def _layer(layer: Layer, indices: list[int], trace: Trace) -> dict[str, Any]:
    selection = layer.selection
    attention = layer.attn_backend is not None
    bare = attention or layer.moe_backend is not None
    row: dict[str, Any] = {
        "path": star_path(layer), "indices": indices, "module": layer.module, "n": layer.n,
        "k": layer.k, "method": layer.method, "scheme": layer.scheme,
        "family": None if bare or not selection or selection.pinned else selection.family,
        "kernel": None if bare else layer.kernel,
        "mode": None if layer.moe_backend else layer.mode, "act": layer.act,
        "why": layer.why,
        "steps": [dict(step._asdict()) for step in selection.steps] if selection else [],
        "alternatives": _alternatives(selection),
        "candidates": _candidates(selection), "rejected": _rejected(selection),
        "findings": [f.id for f in trace.findings if f.message.startswith(layer.path)],
    }
    if attention:
        row |= {"attn_backend": layer.attn_backend, "kv_cache_dtype": layer.kv_cache_dtype}
    if selection and layer.moe_backend is not None:
        row["experts"] = {"class": selection.kernel, "backend": layer.moe_backend,
                          "mode": layer.mode, "family": selection.family}
    if layer.moe_backend is not None and trace.engine == "sglang":
        row["moe_runner_backend"] = None if layer.moe_backend == "none" else layer.moe_backend
    if layer.fused is not None:
        row["fused"] = layer.fused
    if layer.kernel_backend is not None:
        row["kernel_backend"] = layer.kernel_backend
    if layer.prefill_backend is not None:
        row["prefill_backend"] = layer.prefill_backend
    return row


def _alternatives(selection: Selection | None) -> list[dict[str, Any]]:
    found = selection.alternatives if selection else ()
    return [{"kernel": a.kernel, "if_facts": list(a.if_facts)} for a in found]


def _candidates(selection: Selection | None) -> list[dict[str, Any]]:
    return [_candidate(c) for c in selection.candidates] if selection else []


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "kernel": candidate.kernel, "verdict": candidate.verdict,
        "considered": candidate.considered, "source": candidate.source,
        "checks": [{"id": c.id, "verdict": c.verdict, "text": c.text, "source": c.source}
                   for c in candidate.checks],
    }


def _rejected(selection: Selection | None) -> list[dict[str, Any]]:
    return [{"kernel": c.kernel, "reason": c.decisive.text if c.decisive else c.reason,
             "engine_reason": c.reason, "source": c.decisive.source if c.decisive else c.source}
            for c in selection.rejected] if selection else []


def _finding(finding: Finding) -> Mapping[str, Any]:
    return dict(finding._asdict())
