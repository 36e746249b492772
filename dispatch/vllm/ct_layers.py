"""What each compressed-tensors scheme asks of a layer: the kernel family and its facts
(model_executor/layers/quantization/compressed_tensors/schemes/)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.predicates import fill
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm import ct_integers, fp8, nvfp4
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.ct_schemes import Group, joined, scheme_of

Row = Mapping[str, Any]
Scheme = Callable[[Row, Group, Context, Site], Assignment]
METHOD = "CompressedTensorsLinearMethod"


def assign_group(group: Group, context: Context, site: Site) -> Assignment:
    """Return what the scheme of a config group asks of a linear layer, or refuse as it does."""
    row = scheme_of(group, context.table, context.facts, site.path)
    if not row.get("kernel_first"):
        check_capability(row, context, site)
    scheme = ct_integers.assign if "integer" in row else SCHEMES[row["id"]]
    return scheme(row, group, context, site)._replace(scheme=row["id"])


def check_capability(row: Row, context: Context, site: Site) -> None:
    """Refuse a scheme above the GPU."""
    if context.gpu.capability < row["min_capability"]:
        words = joined(context.table, (
            "Quantization scheme is not supported for ",
            f"the current GPU. Min capability: {row['min_capability']}. ",
            f"Current capability: {context.gpu.capability}."))
        raise refuse("layer assignment", "RuntimeError", words, site.path, row["source"],
                     hint="No flag changes this; use another format or a newer GPU.")


def _fp8_w8a8(row: Row, group: Group, context: Context, site: Site) -> Assignment:
    weights, inputs = group.weights, group.inputs
    static = inputs is not None and not inputs.dynamic
    if weights.block_structure:
        if static:
            raise refuse("layer assignment", "AssertionError", "", site.path, row["source"],
                         hint="Block FP8 weights take dynamic activations only.")
        block = (weights.block_structure[0], weights.block_structure[1])
        fp8.check_block_shape(site, block, context.deployment.tp)
        return Assignment(METHOD, None, "fp8_block_w8a8", fp8.block_quant(block), "group")
    quant = fp8.scale_quant(str(weights.strategy), "tensor" if static else "token", static)
    return Assignment(METHOD, None, "fp8_w8a8", quant, fp8.act_name(quant))


def _fp8_w8a16(row: Row, group: Group, context: Context, site: Site) -> Assignment:
    weights = group.weights
    if weights.block_structure:
        fp8.check_block_shape(site, (weights.block_structure[0], weights.block_structure[1]),
                              context.deployment.tp)
    static = group.inputs is not None and not group.inputs.dynamic
    granularity = "block128x128" if weights.strategy == "block" else str(weights.strategy)
    why = "the checkpoint quantizes weights only" if group.inputs is None else (
        f"this GPU ({context.gpu.capability_text}) has no FP8 tensor cores")
    quant = fp8.scale_quant(granularity, "tensor", static)
    asked = "none" if group.inputs is None else "static" if static else "per_token"
    return Assignment(METHOD, None, "w8a16_fp8", quant, asked, why=why)


def _int8(row: Row, group: Group, context: Context, site: Site) -> Assignment:
    static = group.inputs is not None and not group.inputs.dynamic
    return Assignment(METHOD, None, "int8_w8a8", {}, "static" if static else "per_token")


def _mxfp8(row: Row, group: Group, context: Context, site: Site) -> Assignment:
    return Assignment(METHOD, None, "mxfp8", {}, "group", wanted=_wanted(group))


def _mxfp4(row: Row, group: Group, context: Context, site: Site) -> Assignment:
    """MXFP4 activations, whatever the checkpoint says of them."""
    return Assignment(METHOD, None, "mxfp4", mxfp4_quant(context, "mxfp4", 32), "group",
                      wanted=_wanted(group))


def _wanted(group: Group) -> str | None:
    """Return what the checkpoint says of activations where the scheme does not ask."""
    return "none" if group.inputs is None else None


def _mxfp4_fp8(row: Row, group: Group, context: Context, site: Site) -> Assignment:
    """FP8 activations where a kernel takes them, else MXFP4 ones."""
    size = (group.inputs.group_size if group.inputs else None) or 0
    quant = mxfp4_quant(context, "fp8_group" if size else "fp8_token", size)
    instead = _mxfp4(row, group, context, site)._replace(
        scheme=row["id"], why="no kernel takes FP8 activations here: MXFP4 ones are asked for")
    return Assignment(METHOD, None, "mxfp4", quant, "group" if size else "per_token",
                      otherwise=lambda: instead)


def mxfp4_quant(context: Context, act_key: str, group: int) -> dict[str, Any]:
    """Return the facts of an MXFP4 or MXFP6 layer: the activation key asked for, its group size,
    and how the engine prints it."""
    table, facts = context.table, {"quant.act_key": act_key, "quant.act_group": group}
    key = table["humming"]["inputs"][act_key]["key"]
    return {**facts, "quant.act_text": fill(table["quant_keys"][key], facts)}


def _nvfp4(row: Row, group: Group, context: Context, site: Site) -> Assignment:
    return nvfp4.layer(METHOD, weight_only=group.inputs is None)


SCHEMES: Mapping[str, Scheme] = {
    "CompressedTensorsW4A4Fp4": _nvfp4,
    "CompressedTensorsW8A8Mxfp8": _mxfp8,
    "CompressedTensorsW4A4Mxfp4": _mxfp4,
    "CompressedTensorsW4A8Mxfp4": _mxfp4_fp8,
    "CompressedTensorsW8A8Fp8": _fp8_w8a8,
    "CompressedTensorsW8A16Fp8": _fp8_w8a16,
    "CompressedTensorsW8A8Int8": _int8,
}
"""The schemes without an `integer` row."""
