"""AWQ, GPTQ and moe_wna16 experts: weights of 4 or 8 bits, 16-bit activations
(model_executor/layers/quantization/auto_awq.py, auto_gptq.py, moe_wna16.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.predicates import PASS, evaluate
from quantplan.dispatch.trace import EngineError, Refusal, refuse
from quantplan.dispatch.vllm import awq, gptq, moe_wna16
from quantplan.dispatch.vllm.experts.ignore import part_named
from quantplan.dispatch.vllm.experts.plan import Experts, Plan, unquantized
from quantplan.dispatch.vllm.fields import Config
from quantplan.dispatch.vllm.integers import marlin_input_dtype

SYMMETRY = {True: "symmetric", False: "asymmetric"}
MARLIN_TILE = 64
HALVED_MIN = 32
"""moe_wna16.py:MoeWNA16Method.create_weights."""
AWQ_SOURCE = "model_executor/layers/quantization/auto_awq.py:AutoAWQMoEMethod"
GPTQ_SOURCE = "model_executor/layers/quantization/auto_gptq.py:AutoGPTQMoEMethod"
WNA16_SOURCE = "model_executor/layers/quantization/moe_wna16.py:MoeWNA16Method"


def integer_facts(
    layout: str, group: int, zero_points: bool, bias: bool, group_scales: bool = False
) -> dict[str, Any]:
    """Return what the list int_wna16 reads of a layer."""
    return {"quant.layout": layout, "quant.group_size": group, "quant.may_have_bias": bias,
            "quant.may_have_zero_points": zero_points, "quant.group_scales": group_scales}


def marlin_fits(experts: Experts, group: int, padded: bool = True) -> bool:
    """Return whether Marlin takes the experts' sizes and this group; where tiles are not padded,
    only whole ones (marlin_utils.py:check_moe_marlin_supports_config)."""
    if not padded and experts.facts["moe.shard"] % max(MARLIN_TILE, group):
        return False
    backends = experts.context.table["experts_lists"]["int_wna16"]["backends"]
    rows = next(backend["requires"] for backend in backends if backend["id"] == "MARLIN")
    facts = {**experts.facts, "quant.layout": "AutoGPTQConfig", "quant.group_size": group}
    checks = (evaluate(row, facts, "MARLIN", "") for row in rows)
    return all(check is None or check.verdict == PASS for check in checks)


def awq_plan(fields: awq.AwqFields, experts: Experts) -> Plan:
    """Return the plan of experts in an AWQ checkpoint."""
    if part_named(experts, fields.skipped):
        return unquantized("named in modules_to_not_convert, or stored in 16 bits")
    if not marlin_fits(experts, fields.group):
        return wna16_again({**fields.config, "quant_method": "awq"}, experts)
    return marlin_awq(fields.group, fields.zero_point)


def marlin_awq(group: int, zero_point: bool) -> Plan:
    """Return the plan of AWQ experts whose sizes Marlin takes."""
    def after(experts: Experts, backend: str | None, name: str) -> None:
        _check_groups(group, lambda count, groups, rows: (count, groups, rows),
                      f"{AWQ_SOURCE}.create_weights", experts)

    return Plan("AutoAWQMoEMethod", "int_wna16", "kInt4Static", quant=integer_facts(
        "AutoAWQConfig", group, zero_point, True), after=after)


def _check_groups(group: int, shape: Callable[[int, int, int], tuple[int, ...]],
                  source: str, experts: Experts) -> None:
    """Refuse whole-row groups (-1), which make the first scales' `shape` negative: it is given the
    number of experts, the groups of a row, and the rows of gate and up."""
    facts = experts.facts
    if group > 0:
        return
    groups = facts["moe.hidden"] // group
    rows = facts["moe.shard"] * (2 if facts["moe.gated"] else 1)
    raise refuse("shapes under TP", "RuntimeError",
                 f"Trying to create tensor with negative dimension {groups}: "
                 f"{list(shape(facts['moe.local_experts'], groups, rows))}", experts.prefix, source,
                 hint="These experts need groups of 32, 64 or 128 along K; re-quantize with them.")


def gptq_plan(fields: gptq.GptqFields, experts: Experts) -> Plan:
    """Return the plan of experts in a GPTQ checkpoint; the base group decides about Marlin, then
    `dynamic` rules apply. The list of quantized modules is not asked."""
    if not marlin_fits(experts, fields.group, padded=not fields.desc_act):
        return wna16_again(fields.config, experts)
    rule = gptq.dynamic_rule(fields.dynamic, experts.prefix)
    if rule is None:
        return unquantized("skipped by a dynamic rule")
    bits, group, sym = gptq.overridden(fields, rule, experts.prefix)

    def after(experts: Experts, backend: str | None, name: str) -> None:
        if marlin_input_dtype(experts.context, experts.site) and bits != 8:
            raise refuse("layer assignment", "AssertionError",
                         "W8A8-INT8 is not supported by marlin kernel.", experts.prefix,
                         f"{GPTQ_SOURCE}.create_weights",
                         hint="Unset VLLM_MARLIN_INPUT_DTYPE for 4-bit experts.")

    return marlin_gptq(bits, group, sym)._replace(after=after)


def marlin_gptq(bits: int, group: int, sym: bool) -> Plan:
    """Return the plan of GPTQ experts whose sizes Marlin takes."""
    return Plan("AutoGPTQMoEMethod", "int_wna16", "kInt4Static" if bits == 4 else "kInt8Static",
                quant=integer_facts("AutoGPTQConfig", group, not sym, True))


def wna16_plan(fields: moe_wna16.MoeWna16Fields, experts: Experts) -> Plan:
    """Return the plan of experts under --quantization moe_wna16."""
    if part_named(experts, fields.skipped):
        return unquantized("named in modules_to_not_convert")
    config = fields.config
    zero_points = not config["sym"] if fields.linear is gptq else bool(config["zero_point"])
    return _wna16(config["bits"], config["group_size"], zero_points, experts)


def wna16_again(config: Config, experts: Experts) -> Plan:
    """Return the plan of experts whose sizes Marlin does not take: the config is read anew as
    MoeWNA16Config."""
    try:
        fields = moe_wna16.read(config, experts.context)
    except Refusal as refusal:
        raise Refusal(_at(refusal.error, experts)) from None
    return wna16_plan(fields, experts)._replace(why="Marlin does not take these sizes or groups")


def _at(error: EngineError, experts: Experts) -> EngineError:
    return error._replace(type="ValueError", layer=experts.prefix, stage="layer assignment")


def _wna16(bits: int, group: int, zero_points: bool, experts: Experts) -> Plan:
    if bits not in (4, 8):
        raise refuse("layer assignment", "ValueError",
                     "MoeWNA16Method only supports int4 and int8 now.", experts.prefix,
                     WNA16_SOURCE)
    weight = "kInt8Static" if bits == 8 else "kInt4Static32" if group == 32 else "kInt4Static"

    def after(experts: Experts, backend: str | None, name: str) -> None:
        check_halved(group, experts, WNA16_SOURCE)
        _check_groups(group, lambda count, groups, rows: (count, rows, groups),
                      f"{WNA16_SOURCE}.create_weights", experts)

    return Plan("MoeWNA16Method", "int_wna16", weight, quant=integer_facts(
        "MoeWNA16Config", group, zero_points, False), after=after)


def check_halved(group: int, experts: Experts, source: str) -> None:
    """Refuse a group that does not divide the sizes when halved down to 32."""
    facts = experts.facts
    while facts["moe.shard"] % group or facts["moe.hidden"] % group:
        group //= 2
        if group < HALVED_MIN:
            raise refuse("shapes under TP", "AssertionError", "", experts.prefix,
                         f"{source}.create_weights",
                         hint="Use a tensor parallel size that leaves groups of 32 or more.")


PLANS: Mapping[str, Any] = {"awq": awq_plan, "gptq": gptq_plan, "moe_wna16": wna16_plan}
