"""vLLM's start-up on other platforms, up to the gates of the config class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.platforms import (
    Named,
    Place,
    PlatformTrace,
    check_supported,
    kv_dtype,
    on_platform,
    told,
)
from quantplan.dispatch.trace import EngineError, Method, Refusal
from quantplan.dispatch.vllm import coverage
from quantplan.dispatch.vllm.context import Table
from quantplan.dispatch.vllm.dtype import BFLOAT16_MIN, resolve_dtype
from quantplan.dispatch.vllm.names import NamedMethod, class_of, name_method
from quantplan.dispatch.vllm.serving import check_capability, check_default, check_dtype


def resolve_platform(
    checkpoint: Checkpoint, table: Table, place: Place, deployment: Deployment
) -> PlatformTrace:
    """Return the method's name and class there, its gates and the KV cache's dtype."""
    here = on_platform(table, place)
    dtype, method = deployment.dtype, Method(requested=deployment.quantization)
    error: EngineError | None = None
    kv_cache = config = None
    try:
        dtype = resolve_dtype(table, checkpoint, _computes(place), deployment.dtype)
        named = _named(here, checkpoint, place, deployment)
        method = method._replace(checkpoint=named.checkpoint, steps=named.steps)
        coverage.check_method(table, named, deployment)
        config = named.config
        if named.resolved is not None:
            row = _class(here, checkpoint, named)
            _check_gates(named.resolved, row, place, dtype)
            method = method._replace(resolved=named.resolved, config_class=row["id"],
                                     min_capability=row["min_capability"])
        kv_cache = kv_dtype(place, deployment.kv_cache_dtype, dtype, named.resolved is not None)
    except Refusal as refusal:
        error = refusal.error
    return told(table, place, deployment, Named(dtype, method, config, kv_cache, error))


def _computes(place: Place) -> Gpu:
    """Return a GPU that computes in the platform's dtypes: all that have rows have bfloat16."""
    assert place.row["dtypes"][0] == "bfloat16"
    return Gpu(place.row["id"], BFLOAT16_MIN)


def _named(
    here: Table, checkpoint: Checkpoint, place: Place, deployment: Deployment
) -> NamedMethod:
    """Return the method's name: the platform is asked before deprecated methods are refused
    (config/model.py:ModelConfig._verify_quantization)."""
    lost = place.row.get("lost_overrides", ())
    here = {**here, "overrides": [hook for hook in here["overrides"] if hook["id"] not in lost]}
    allowed = deployment._replace(allow_deprecated_quantization=True)
    named = name_method(here, checkpoint, allowed, place.capability)
    check_supported(place, named.resolved, here["methods"])
    return name_method(here, checkpoint, deployment, place.capability)


def _class(here: Table, checkpoint: Checkpoint, named: NamedMethod) -> Mapping[str, Any]:
    """Return the row of the method's config class, or refuse where it has no config."""
    name = str(named.resolved)
    row: Mapping[str, Any] = here["config_classes"][class_of(here, name, named.config is None)]
    files = tuple(row.get("files", ()))
    if named.config is None and not (files and any(
            file.endswith(files) for file in checkpoint.side_files)):
        check_default(name, row)
    return row


def _check_gates(name: str, row: Mapping[str, Any], place: Place, dtype: str) -> None:
    if place.gate is not None:
        check_capability(name, row, place.gate)
    check_dtype(name, row, dtype)
