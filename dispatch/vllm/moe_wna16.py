"""--quantization moe_wna16 on an AWQ or GPTQ checkpoint: linear layers go back to those methods,
built anew from the raw config (model_executor/layers/quantization/moe_wna16.py)."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.trace import EngineError, Refusal
from quantplan.dispatch.vllm import awq, gptq
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.fields import Config, bad_config, names, need
from quantplan.tables.record import NamedTuple


class MoeWna16Fields(NamedTuple):
    """MoeWNA16Config after construction: the linear method's module, raw config and skip names."""

    linear: Any
    config: Config
    skipped: tuple[str, ...]


def compatible(config: Config, capability: int, awq_min: int) -> bool:
    """Return whether the override hook answers (MoeWNA16Config.is_moe_wna16_compatible)."""
    method = str(config.get("quant_method", "")).lower()
    if method == "awq":
        return config.get("bits") == 4 and capability >= awq_min
    try:
        gptq.check_desc_act(config.get("desc_act", False), config.get("group_size"),
                            config.get("dynamic") or {})
    except Refusal:
        return False
    return method == "gptq" and config.get("bits") in (4, 8)


def read(config: Config, context: Context) -> MoeWna16Fields:
    """Return the fields of the checkpoint under moe_wna16, or refuse as its constructor does."""
    method = need(config, "quant_method")
    need(config, "bits")
    need(config, "group_size")
    if str(method).lower() == "gptq":
        need(config, "sym")
        return MoeWna16Fields(gptq, config, ())
    need(config, "zero_point")
    least, capability = context.table["config_classes"]["AutoAWQConfig"]["min_capability"], (
        context.gpu.capability)
    if capability < least:
        raise bad_config("The quantization method moe_wna16 + awq is not supported for the current "
                         f"GPU. Minimum capability: {least}. Current capability: {capability}.",
                         "model_executor/layers/quantization/moe_wna16.py:MoeWNA16Config")
    return MoeWna16Fields(awq, config, names(config, "modules_to_not_convert"))


def assign(fields: MoeWna16Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer by the delegate; None for embeddings and lm_head."""
    if any(name in site.path for name in fields.skipped):
        return Assignment("UnquantizedLinearMethod", why="named in modules_to_not_convert")
    if site.module.split == "vocab":
        return None
    blind = context._replace(checkpoint=_without_headers(context.checkpoint))
    try:
        delegate = fields.linear.read(fields.config, blind)
    except Refusal as refusal:
        raise Refusal(_at_layer(refusal.error, site)) from None
    found: Assignment | None = fields.linear.assign(delegate, context, site)
    return found


def _without_headers(checkpoint: Checkpoint) -> Checkpoint:
    """The delegate never looks into the safetensors headers (no maybe_update_config)."""
    return Checkpoint(checkpoint.name, checkpoint.origin, checkpoint.config, tensors={})


def _at_layer(error: EngineError, site: Site) -> EngineError:
    """The delegate's constructor runs while the layer is built: a plain ValueError."""
    return error._replace(type="ValueError", layer=site.path, stage="layer assignment")
