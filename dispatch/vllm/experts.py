"""The routed experts of a mixture-of-experts layer
(model_executor/layers/fused_moe/)."""

from __future__ import annotations

from quantplan.dispatch.trace import Layer
from quantplan.dispatch.vllm.context import Context, Site
from quantplan.dispatch.vllm.serving import Serving
from quantplan.tables.errors import NotKnownError


def experts_layer(context: Context, serving: Serving, site: Site) -> Layer:
    """Return the experts' method; NotKnownError for quantized ones, whose lists have no rows."""
    if serving.config_class is not None:
        raise NotKnownError(f"{site.path}: experts under {serving.config_class}",
                            hint="Their backends are not in this version's table yet.")
    return Layer(site.module_path, site.module.module, layer_index=site.layer_index,
                 method="UnquantizedFusedMoEMethod")
