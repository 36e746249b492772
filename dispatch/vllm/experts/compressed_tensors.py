"""Experts of compressed-tensors checkpoints
(model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe/)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from quantplan.dispatch.predicates import applies
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.ct_schemes import Group, group_facts
from quantplan.dispatch.vllm.ct_targets import CtFields, group_of
from quantplan.dispatch.vllm.experts.ct_integers import w4a8_fp8, w4a8_int8, wna16
from quantplan.dispatch.vllm.experts.fp8 import check_blocks
from quantplan.dispatch.vllm.experts.mxfp4 import MXFP4, fixed_mxfp4
from quantplan.dispatch.vllm.experts.plan import NO_KEY, Experts, Plan, unquantized
from quantplan.dispatch.vllm.fp8 import block_facts

FOLDER = "model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe"
SOURCE = f"{FOLDER}/compressed_tensors_moe.py:CompressedTensorsMoEMethod.get_moe_method"
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
LINEAR, EXPERTS = "Linear", "RoutedExperts"


def plan(fields: CtFields, experts: Experts) -> Plan:
    """Return the plan of experts in a compressed-tensors checkpoint: the config group of the first
    expert's three matrices, which must be one."""
    targets = fields.targets
    if LINEAR in targets and EXPERTS not in targets:
        fields = fields._replace(targets={**targets, EXPERTS: targets[LINEAR]})
    names = _asked(tuple(experts.site.module.facts.get("names", PROJECTIONS)))
    module = experts.site.module.module
    found = [group_of(fields, experts.context, f"{experts.prefix}.0.{name}", module)
             for name in names]
    group, ignored = found[-1]
    if any(other != group for other, _ in found):
        raise _refused(experts, "ValueError", "All MoE projections need to have same quantization "
                       "scheme but found multiple")
    if group is None:
        return unquantized("named in ignore" if ignored else "no config group targets it")
    return PLANS[_method(group, experts)](group, experts)


def _asked(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of three matrices: experts without a gate have two, and the engine asks for
    the third by the name None."""
    return names if len(names) > 2 else (names[0], "None", *names[1:])


def _refused(experts: Experts, kind: str, message: str, source: str = SOURCE) -> Exception:
    return refuse("layer assignment", kind, message, experts.prefix, source,
                  hint="No experts of this version read this combination of weights and "
                  "activations.")


def _method(group: Group, experts: Experts) -> str:
    table = experts.context.table
    facts = group_facts(group, table)
    for name, row in table["ct_experts"].items():
        if name == "CompressedTensorsW8A8Int8MoEMethod" and group.inputs is None:
            raise _refused(experts, "AttributeError",
                           "'NoneType' object has no attribute 'num_bits'")
        if any(applies(when, facts) for when in row["when"]):
            return str(name)
    raise _refused(experts, "RuntimeError",
                   f"Unsupported FusedMoe scheme: {group.weights}, {group.inputs}")


def _mxfp4_fp8(group: Group, experts: Experts) -> Plan:
    return MXFP4._replace(method="CompressedTensorsW4A8Mxfp4MoEMethod",
                          own_act="kFp8DynamicTokenSym")


def _mxfp4(group: Group, experts: Experts) -> Plan:
    return fixed_mxfp4("CompressedTensorsW4A4Mxfp4MoEMethod", ("b12x", "flashinfer_moe_ep"),
                       experts.context.facts["flag.moe_backend"])


def _mxfp8(group: Group, experts: Experts) -> Plan:
    return Plan("CompressedTensorsW8A8Mxfp8MoEMethod", "mxfp8", "kMxfp8Static", "kMxfp8Dynamic")


def _nvfp4(group: Group, experts: Experts) -> Plan:
    if group.inputs is not None:
        inputs = group_facts(group._replace(weights=group.inputs), experts.context.table)
        row = experts.context.table["ct_experts"]["CompressedTensorsW4A4Nvfp4MoEMethod"]
        if not any(applies(when, inputs) for when in row["when"]):
            raise _refused(experts, "ValueError", "For NVFP4 weights, input quantization must also "
                           f"be NVFP4 format or None for NVFP4A16, found {group.inputs}")
    return Plan("CompressedTensorsW4A4Nvfp4MoEMethod", "nvfp4", "kNvfp4Static",
                NO_KEY if group.inputs is None else "kNvfp4Dynamic")


def _fp8(group: Group, experts: Experts) -> Plan:
    """The activation key follows from the strategies; dynamic activations with one scale for the
    tensor are asked for as groups of 128 (compressed_tensors_moe_w8a8_fp8.py)."""
    weights, inputs = group.weights, group.inputs
    assert inputs is not None
    quant = {"quant.vllm_cutlass": True}
    method = "CompressedTensorsW8A8Fp8MoEMethod"
    pair = (str(weights.strategy), str(inputs.strategy))
    if pair == ("channel", "token"):
        return Plan(method, "fp8", "kFp8StaticChannelSym", "kFp8DynamicTokenSym", quant)
    if pair == ("tensor", "tensor"):
        act = "kFp8Dynamic128Sym" if inputs.dynamic else "kFp8StaticTensorSym"
        return Plan(method, "fp8", "kFp8StaticTensorSym", act, quant)
    if weights.strategy != "block" or not weights.block_structure:
        raise _refused(experts, "AssertionError", "",
                       f"{FOLDER}/compressed_tensors_moe_w8a8_fp8.py:{method}")
    block = (weights.block_structure[0], weights.block_structure[1])
    return Plan(method, "fp8", "kFp8Static128BlockSym", "kFp8Dynamic128Sym",
                {**quant, **block_facts(block)}, after=partial(check_blocks, block))


def _int8(group: Group, experts: Experts) -> Plan:
    if (str(group.weights.strategy), str(group.inputs and group.inputs.strategy)) != (
            "channel", "token"):
        raise _refused(experts, "ValueError", "For INT8 Fused MoE layers, we require channelwise, "
                       f"dynamic per token quantization. Found {group.weights}, {group.inputs}")
    return Plan("CompressedTensorsW8A8Int8MoEMethod", "int8", "kInt8StaticChannelSym",
                "kInt8DynamicTokenSym")


PLANS: Mapping[str, Callable[[Group, Experts], Plan]] = {
    "CompressedTensorsW4A8Mxfp4MoEMethod": _mxfp4_fp8,
    "CompressedTensorsW4A4Mxfp4MoEMethod": _mxfp4,
    "CompressedTensorsW8A8Mxfp8MoEMethod": _mxfp8,
    "CompressedTensorsWNA16MoEMethod": wna16,
    "CompressedTensorsW4A4Nvfp4MoEMethod": _nvfp4,
    "CompressedTensorsW8A8Fp8MoEMethod": _fp8,
    "CompressedTensorsW8A8Int8MoEMethod": _int8,
    "CompressedTensorsW4A8Fp8MoEMethod": w4a8_fp8,
    "CompressedTensorsW4A8Int8MoEMethod": w4a8_int8,
}
"""Method class -> its plan for a config group."""
