"""Experts of AutoRound checkpoints (model_executor/layers/quantization/inc/schemes/)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm import inc
from quantplan.dispatch.vllm.experts.humming import integer_plan
from quantplan.dispatch.vllm.experts.integers import (
    marlin_awq,
    marlin_fits,
    marlin_gptq,
    wna16_again,
)
from quantplan.dispatch.vllm.experts.mxfp4 import fixed_mxfp4
from quantplan.dispatch.vllm.experts.mxfp8 import check_mxfp8
from quantplan.dispatch.vllm.experts.plan import Experts, Plan, unquantized
from quantplan.dispatch.vllm.inc_config import IncFields

MARLIN_BITS = (4, 8)


def plan(fields: IncFields, experts: Experts) -> Plan:
    """Return the plan of experts in an AutoRound checkpoint."""
    if inc.plainly_16_bit(fields, experts.prefix):
        return unquantized("16 bits by extra_config")
    layer = inc.layer_config(fields, experts.context, experts.site)
    if not layer.quantized:
        return unquantized("16 bits by extra_config or its block")
    return PLANS[inc.scheme_of(layer, experts.site)](layer, experts)


def _fp8(layer: inc.IncLayer, experts: Experts) -> Plan:
    raise refuse("layer assignment", "NotImplementedError",
                 f"INCFp8Scheme does not support MoE layers. Layer config: {layer}", experts.prefix,
                 f"{inc.SCHEMES}/inc_scheme.py:INCScheme.get_moe_method",
                 hint="Leave the experts in 16 bits by extra_config.")


def _mxfp8(layer: inc.IncLayer, experts: Experts) -> Plan:
    return Plan("INCMxfp8MoEMethod", "mxfp8", "kMxfp8Static", "kMxfp8Dynamic", after=partial(
        check_mxfp8, f"{inc.SCHEMES}/inc_mxfp8_moe.py:INCMxfp8MoEMethod"))


def _mxfp4(layer: inc.IncLayer, experts: Experts) -> Plan:
    flag = experts.context.facts["flag.moe_backend"]
    if flag.startswith("flashinfer_moe_ep"):
        raise refuse("kernel selection", "ValueError",
                     f"moe_backend={flag!r} is not supported for AutoRound (INC) MXFP4 MoE "
                     "checkpoints", experts.prefix,
                     f"{inc.SCHEMES}/inc_mxfp4_moe.py:INCMxfp4MoEMethod")
    return fixed_mxfp4("INCMxfp4MoEMethod", ("b12x",), flag)


def _integer(layer: inc.IncLayer, experts: Experts) -> Plan:
    config = inc.integer_config(layer)
    if layer.bits in experts.context.table["inc"]["humming_bits"]:
        return integer_plan(config, experts)
    if not (layer.packed_for("gptq") or layer.packed_for("awq")):
        raise refuse("layer assignment", "NotImplementedError",
                     f"WNA16 MoE does not support config {layer}", experts.prefix,
                     f"{inc.SCHEMES}/inc_wna16_scheme.py:INCWna16Scheme.get_moe_method")
    if isinstance(layer.group, tuple):
        raise refuse("layer assignment", "AssertionError",
                     "WNA16 only supports integer group_size.", experts.prefix,
                     f"{inc.SCHEMES}/inc_wna16_scheme.py:_resolve_gptq_moe")
    fits = layer.bits in MARLIN_BITS and marlin_fits(experts, layer.group, padded=False)
    if layer.packed_for("gptq"):
        if fits and layer.sym:
            return marlin_gptq(layer.bits, layer.group, layer.sym)
    elif fits:
        return marlin_awq(layer.group, not layer.sym)
    return wna16_again(config, experts)


PLANS: Mapping[str, Callable[[inc.IncLayer, Experts], Plan]] = {
    "INCFp8Scheme": _fp8, "INCMxfp8Scheme": _mxfp8, "INCWna16Scheme": _integer,
    "INCMxfp4Scheme": _mxfp4,
}
"""Scheme class -> its plan."""
