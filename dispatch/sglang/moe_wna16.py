"""GPTQ and AWQ checkpoints under --quantization moe_wna16 (layers/quantization/moe_wna16.py)."""

from __future__ import annotations

from quantplan.dispatch.sglang import awq, gptq
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts, wna16_experts
from quantplan.dispatch.sglang.fields import Config, given, names, need, whole
from quantplan.dispatch.sglang.names import marlin_serves
from quantplan.dispatch.trace import refuse
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/moe_wna16.py:MoeWNA16Config.get_quant_method"
NO_EMBEDDING = (
    "UnquantizedLinearMethod.create_weights() missing 5 required positional arguments: "
    "'input_size_per_partition', 'output_partition_sizes', 'input_size', 'output_size', and "
    "'params_dtype'")
"""What an embedding or lm_head that the class gives a linear layer's method ends with."""


class Wna16Fields(NamedTuple):
    """What MoeWNA16Config keeps, and the config that serves its linear layers; without `marlin`
    that of GPTQ is GPTQConfig."""

    bits: int
    group_size: int
    ignored: tuple[str, ...]
    linear: awq.AwqFields | gptq.GptqFields
    marlin: bool = True


def read(config: Config | None, context: Context) -> Wna16Fields:
    """Return the fields, or refuse as the config class does."""
    assert config is not None, "the class asks for a file first"
    if need(config, "quant_method") not in ("gptq", "awq"):
        raise refuse("config fields", "ValueError", "moe_wna16 only support gptq and awq.", None,
                     SOURCE, hint="Drop --quantization moe_wna16.")
    bits, group_size = (whole(need(config, key), key) for key in ("bits", "group_size"))
    if config.get("quant_method") == "awq":
        need(config, "zero_point")
        ignored = names(given(config, "modules_to_not_convert"), "modules_to_not_convert")
        return Wna16Fields(bits, group_size, ignored, awq.read(config, context))
    fields = gptq.read_plain(config)
    marlin = (fields.bits, fields.sym) in gptq.TYPES and config.get("desc_act") is not None and (
        marlin_serves(context.table, group_size, context.gpu.capability))
    return Wna16Fields(bits, group_size, (), fields, marlin)


def assign(fields: Wna16Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer: GPTQ's on Marlin, or plain AWQ's."""
    ignored = any(name in site.path for name in fields.ignored)
    if site.module.split == "vocab":
        if ignored:
            raise refuse("layer assignment", "TypeError", NO_EMBEDDING, site.path, SOURCE,
                         hint="Leave embeddings and lm_head out of modules_to_not_convert.")
        return None
    if ignored:
        return unquantized("named in modules_to_not_convert")
    if isinstance(fields.linear, awq.AwqFields):
        return awq.assign(fields.linear, context, site)
    if not fields.marlin:
        return gptq.assign_plain(fields.linear, site)
    return gptq.assign(fields.linear, context, site)


def experts(fields: Wna16Fields, context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of routed experts: Triton, whatever the backend."""
    if any(name in site.path for name in fields.ignored):
        return unquantized_experts("named in modules_to_not_convert", "nothing")
    return wna16_experts(held, site, fields.bits, fields.group_size)
