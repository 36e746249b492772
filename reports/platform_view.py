"""An answer for a platform other than CUDA as plain data: the JSON of `explain --platform`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.platforms import MethodState, PlatformTrace
from quantplan.reports.explain_view import engine_view, method_view, model_view

SCHEMA = "quantplan/platform/1"
NOT_KNOWN = ("fields of the config class", "which of the kernels run, and in which mode",
             "routed experts", "sizes under --tp", "whether it starts")
"""What no answer for another platform says."""


def platform_view(
    checkpoint: Checkpoint, deployment: Deployment, trace: PlatformTrace
) -> dict[str, Any]:
    """Return the answer as JSON-ready data, by reports/schema/platform.v1.json."""
    row = trace.place.row
    return {
        "schema": SCHEMA,
        "model": model_view(checkpoint),
        "engine": engine_view(trace.engine, trace.version, trace.asked),
        "platform": {"id": row["id"], "checked_on_hardware": False, "gpu": _gpu(trace),
                     "assumes": row.get("assumes"), "fp8_dtype": trace.place.fp8_dtype,
                     "source": row["source"]},
        "deployment": {"dtype": trace.dtype, "dtype_requested": deployment.dtype,
                       "quantization": deployment.quantization,
                       "kv_cache_dtype": deployment.kv_cache_dtype},
        "method": {**method_view(trace.method),
                   "min_capability_asked": trace.place.gate is not None},
        "kv_cache": dict(trace.kv_cache),
        "refused": trace.error is not None,
        "error": _error(trace),
        "methods": [dict(state._asdict()) for state in trace.states],
        "attention": [{"id": part["id"], "if": part.get("if"),
                       "kv_cache_dtypes": part.get("kv_cache_dtypes"), "source": part["source"]}
                      for part in row["attention"]],
        "lists": [_list(part) for part in trace.lists],
        "rules": [dict(rule) for rule in row["rules"]],
        "findings": [dict(finding._asdict()) for finding in trace.findings],
        "not_known": list(NOT_KNOWN),
    }


def _gpu(trace: PlatformTrace) -> dict[str, Any] | None:
    gpu = trace.place.gpu
    return None if gpu is None else {
        "id": gpu["id"], "names": list(gpu.get("names", ())), "capability": gpu["capability"],
        "source": gpu["source"]}


def _error(trace: PlatformTrace) -> dict[str, Any] | None:
    error = trace.error
    return None if error is None else {
        "stage": error.stage, "type": error.type, "message": error.message,
        "source": error.source, "hint": error.hint}


def _list(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": part["id"], "layers": part["layers"], "source": part["source"],
            "candidates": [{"kernel": row["id"], "file": row["file"],
                            "asks": list(row.get("asks", ()))} for row in part["candidates"]]}


GRID_SCHEMA = "quantplan/tables-platforms/1"


def grid_view(
    table: Mapping[str, Any], grid: Mapping[str, Mapping[str, MethodState]]
) -> dict[str, Any]:
    """Return the methods of every platform as JSON-ready data
    (reports/schema/tables-platforms.v1.json)."""
    return {"schema": GRID_SCHEMA, "engine": table["engine"], "version": table["version"],
            "checked_on_hardware": False,
            "methods": [{"id": name, "platforms": {
                platform: {"state": state.state, "config_class": state.config_class,
                           "words": state.words, "source": state.source}
                for platform, state in row.items()}} for name, row in grid.items()]}
