"""SGLang's start-up on other platforms, up to the gates of the config class."""

from __future__ import annotations

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.platforms import (
    Named,
    Place,
    PlatformTrace,
    check_supported,
    kv_dtype,
    on_platform,
    told,
)
from quantplan.dispatch.sglang.config_source import check_without_config
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.dtypes import model_dtype
from quantplan.dispatch.sglang.models import lifted
from quantplan.dispatch.sglang.names import UNQUANT, name_method
from quantplan.dispatch.sglang.serving import check_gates
from quantplan.dispatch.trace import EngineError, Method, Refusal


def resolve_platform(
    checkpoint: Checkpoint, table: Table, place: Place, deployment: Deployment
) -> PlatformTrace:
    """Return the method's name and class there, its gates and the KV cache's dtype."""
    here, checkpoint = on_platform(table, place), lifted(table, checkpoint)
    choices = {str(name): str(table["methods_source"])
               for name in (*table["quantization_choices"], *table["methods"]) if name != UNQUANT}
    dtype, requested = model_dtype(checkpoint, deployment.dtype), deployment.quantization
    method, kv_cache = Method(requested=requested), None
    error: EngineError | None = None
    config = None
    try:
        named = name_method(here, checkpoint, requested, place.capability)
        method = method._replace(checkpoint=named.checkpoint, steps=named.steps)
        check_supported(place, named.resolved, here["methods"])
        config = named.config
        if named.resolved is not None:
            row = here["methods"][named.resolved]
            if config is None:
                check_without_config(row)
            check_gates(row, place.gate, dtype)
            method = method._replace(resolved=named.resolved, config_class=row["config_class"],
                                     min_capability=row.get("min_capability"))
        kv_cache = kv_dtype(place, deployment.kv_cache_dtype, dtype, named.resolved is not None)
    except Refusal as refusal:
        error = refusal.error
    return told(table, place, deployment, Named(dtype, method, config, kv_cache, error), choices)
