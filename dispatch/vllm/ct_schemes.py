"""Which compressed-tensors scheme class a config group becomes: the first rule that fits
(compressed_tensors.py:CompressedTensorsConfig._get_scheme_from_parts)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quantplan.dispatch.vllm.context import refuse
from quantplan.dispatch.vllm.ct_args import Args

SOURCE = ("model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:"
          "CompressedTensorsConfig._get_scheme_from_parts")
ACTIVATION_FORMATS = ("naive-quantized", "int-quantized", "float-quantized",
                      "nvfp4-pack-quantized")
"""compressed_tensors/utils.py:is_activation_quantization_format."""
PACKED_FORMATS = ("pack-quantized", "int-quantized")


class Group(NamedTuple):
    """The parts of a config group that choose the scheme."""

    weights: Args
    inputs: Args | None
    outputs: Args | None
    format: str | None


def scheme_of(group: Group, capability: int, fp8_min: int, path: str) -> str:
    """Return the scheme class name, or refuse as the engine does when none fits.

    `fp8_min` is the capability below which an FP8 W8A8 group becomes weight-only.
    """
    for fits, name in RULES:
        if fits(group, capability):
            return _checked(name, group, path)
    if group.format in ACTIVATION_FORMATS:
        found = _activation_scheme(group, capability >= fp8_min, path)
        if found:
            return found
    weight_quant, input_quant, output_quant = group.weights, group.inputs, group.outputs
    raise refuse(
        "layer assignment", "NotImplementedError",
        f"No compressed-tensors compatible scheme was found for layer_name={path!r}, "
        f"{weight_quant=}, {input_quant=}, {output_quant=}, format={group.format!r}", path, SOURCE,
        hint="No kernel of this version reads this combination of weights and activations.")


def _checked(name: str, group: Group, path: str) -> str:
    bad_input = group.inputs is not None and not _is_nvfp4(group.inputs)
    if name == "CompressedTensorsW4A4Fp4" and bad_input:
        raise refuse("layer assignment", "ValueError",
                     "For NVFP4 weights, input quantization must also be NVFP4 format, None for "
                     "NVFP4A16", path, SOURCE)
    return name


def _is_nvfp4(args: Args) -> bool:
    return (args.strategy == "tensor_group" and args.symmetric and args.group_size == 16
            and args.type == "float" and args.num_bits == 4)


def _is_mx(args: Args, bits: int) -> bool:
    return (args.strategy == "group" and args.symmetric and args.group_size == 32
            and args.type == "float" and args.num_bits == bits)


def _is_mxfp4_fp8(group: Group, _: int) -> bool:
    inputs = group.inputs
    return (_is_mx(group.weights, 4) and inputs is not None and inputs.type == "float"
            and inputs.num_bits == 8 and not group.weights.dynamic and bool(inputs.dynamic)
            and inputs.strategy in ("token", "group") and inputs.symmetric)


def _is_mxfp8(group: Group, _: int) -> bool:
    return _is_mx(group.weights, 8) and group.weights.scale_dtype == "torch.uint8"


def _is_w4a8_fp8(group: Group, capability: int) -> bool:
    weights, inputs = group.weights, group.inputs
    return (capability == 90 and inputs is not None and weights.type == "int"
            and inputs.type == "float" and weights.num_bits == 4 and inputs.num_bits == 8
            and weights.strategy == "group" and inputs.strategy == "token"
            and weights.symmetric and inputs.symmetric
            and not weights.dynamic and bool(inputs.dynamic))


def _is_static_int8(args: Args | None) -> bool:
    return (args is not None and args.type == "int" and args.strategy == "tensor"
            and args.num_bits == 8 and not args.dynamic)


def _is_wna8o8(group: Group, _: int) -> bool:
    weights = group.weights
    return (group.format in PACKED_FORMATS and weights.strategy in ("channel", "group")
            and weights.type == "int" and not weights.dynamic
            and _is_static_int8(group.inputs) and _is_static_int8(group.outputs))


def _is_packed_int_with_act(group: Group, act_bits: int) -> bool:
    weights, inputs = group.weights, group.inputs
    return (inputs is not None and group.format == "pack-quantized"
            and weights.strategy in ("channel", "group") and weights.type == "int"
            and not weights.dynamic and inputs.type == "int" and inputs.symmetric
            and bool(inputs.dynamic) and inputs.strategy in ("token", "group")
            and inputs.num_bits == act_bits)


def _is_wna16(group: Group, _: int) -> bool:
    return (group.weights.strategy in ("channel", "group") and group.inputs is None
            and not group.weights.dynamic and group.format == "pack-quantized")


RULES: tuple[tuple[Callable[[Group, int], bool], str], ...] = (
    (lambda g, c: _is_nvfp4(g.weights), "CompressedTensorsW4A4Fp4"),
    (_is_mxfp4_fp8, "CompressedTensorsW4A8Mxfp4"),
    (lambda g, c: _is_mx(g.weights, 4), "CompressedTensorsW4A4Mxfp4"),
    (_is_mxfp8, "CompressedTensorsW8A8Mxfp8"),
    (_is_w4a8_fp8, "CompressedTensorsW4A8Fp8"),
    (_is_wna8o8, "CompressedTensorsWNA8O8Int"),
    (lambda g, c: _is_packed_int_with_act(g, 8), "CompressedTensorsWNA8Int"),
    (lambda g, c: _is_packed_int_with_act(g, 4), "CompressedTensorsWNA4Int"),
    (_is_wna16, "CompressedTensorsWNA16"),
)
"""The rules in front of the activation formats, in the engine's order."""


def _activation_scheme(group: Group, fp8_ok: bool, path: str) -> str | None:
    weights, inputs = group.weights, group.inputs
    if _is_fp8_w8a8(weights, inputs):
        return "CompressedTensorsW8A8Fp8" if fp8_ok else "CompressedTensorsW8A16Fp8"
    if _is_fp8_weight(weights):
        return "CompressedTensorsW8A16Fp8"
    if inputs is None:
        raise refuse("layer assignment", "AttributeError",
                     "'NoneType' object has no attribute 'num_bits'", path,
                     f"{SOURCE}._is_static_tensor_w8a8")
    if _is_static_w8a8(weights, inputs) or _is_dynamic_w8a8(weights, inputs):
        return "CompressedTensorsW8A8Int8"
    return "CompressedTensorsW4A8Int" if _is_dynamic_w4a8(weights, inputs) else None


def _is_fp8_weight(weights: Args) -> bool:
    return (weights.type == "float" and weights.symmetric and not weights.dynamic
            and weights.strategy in ("tensor", "channel", "block"))


def _is_fp8_w8a8(weights: Args, inputs: Args | None) -> bool:
    if inputs is None or inputs.type != "float" or not _is_fp8_weight(weights):
        return False
    return bool(inputs.dynamic) or (inputs.symmetric and inputs.strategy == "tensor")


def _is_static_w8a8(weights: Args, inputs: Args) -> bool:
    return (weights.num_bits == inputs.num_bits == 8 and weights.strategy in ("tensor", "channel")
            and inputs.strategy == "tensor" and weights.symmetric
            and not weights.dynamic and not inputs.dynamic)


def _is_dynamic_w8a8(weights: Args, inputs: Args) -> bool:
    return (weights.num_bits == inputs.num_bits == 8 and weights.strategy in ("tensor", "channel")
            and inputs.strategy == "token" and weights.symmetric
            and not weights.dynamic and bool(inputs.dynamic))


def _is_dynamic_w4a8(weights: Args, inputs: Args) -> bool:
    return (weights.type == inputs.type == "int" and weights.num_bits == 4
            and inputs.num_bits == 8 and weights.strategy in ("group", "channel")
            and inputs.strategy == "token" and weights.symmetric
            and not weights.dynamic and bool(inputs.dynamic))
