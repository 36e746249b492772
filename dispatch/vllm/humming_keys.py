"""How the engine prints Humming's weights and activations: as quantization keys, and as schemas
(model_executor/layers/quantization/utils/humming/schema.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.humming_numbers import Input, number
from quantplan.dispatch.humming_schemas import MODEL, Fault, Stored
from quantplan.dispatch.vllm.humming_activation import Asked

Rules = Mapping[str, Any]
WNA16 = ("uint4b8", "uint8b128", "u8")
"""Integer weights that experts/fused_humming_moe.py:_is_supported_wna16_weight_key takes."""


def weight_key(rules: Rules, stored: Stored, dtype: str) -> str:
    """Return the quantization key of weights, or raise what a format without one raises."""
    if stored.ordered:
        raise Fault("AssertionError")
    name, scales = unsigned(stored.weight.dtype), stored.scales
    if name not in rules["key_dtypes"]:
        raise Fault("KeyError", name)
    scale = dtype if scales.dtype == MODEL else scales.dtype
    parts = [rules["key_dtypes"][name],
             f"scale({_scale(rules, scale)},static,{_weight_shape(stored)})"]
    if scales.second == "tensor":
        parts.append("scale2(f32,static,per_tensor)")
    return _key(parts, not stored.weight.zero_point)


def any_integer(key: str) -> bool:
    """Return whether a key is one of integer weights that Humming's experts take in any group."""
    dtype, _, rest = key.removeprefix("QuantKey(").partition(",")
    shaped = "per_channel" in rest or ("GroupShape(row=1, col=" in rest and "col=-" not in rest)
    return dtype in WNA16 and shaped and "scale2(" not in rest


def input_key(rules: Rules, given: Input) -> str | None:
    """Return the quantization key of activations, None for 16 bits, or raise what a format
    without one raises."""
    if given.dtype is None or number(given.dtype).bits >= 16 or given.mode == "none":
        return None
    if given.dtype not in rules["key_dtypes"]:
        raise Fault("KeyError", given.dtype)
    static = given.mode == "static_tensor"
    shape = f"GroupShape(row=1, col={given.group})" if given.group > 0 else "per_token"
    default = {16: "float8e4m3", 32: "float8e8m0"}.get(given.group, "float32")
    kind = "static" if static else "dynamic"
    parts = [rules["key_dtypes"][given.dtype],
             f"scale({_scale(rules, given.scale or default)},{kind},"
             f"{'per_tensor' if static else shape})"]
    if given.mode == "static_tensor_dynamic_group":
        parts.append("scale2(f32,static,per_tensor)")
    if given.mode == "dynamic_group_token":
        parts.append("scale2(f32,dynamic,per_token)")
    return _key(parts, True)


def _key(parts: list[str], symmetric: bool) -> str:
    return f"QuantKey({','.join((*parts, 'symmetric' if symmetric else 'asymmetric'))})"


def _scale(rules: Rules, name: str | None) -> str:
    return str(rules["key_scales"][name or "float32"])


def _weight_shape(stored: Stored) -> str:
    group, rows = stored.weight.group, stored.scales.rows
    if stored.scales.kind == "tensor":
        return "per_tensor"
    if group == 0 and rows == 0:
        return "per_channel"
    return f"GroupShape(row={rows or 1}, col={group or -1})"


def unsigned(name: str) -> str:
    """Return the format of weights, whose integers are unsigned."""
    return f"u{name}" if name.startswith("int") else name


def no_input_schema(stored: Stored, given: Input, asked: Asked, fallback: bool) -> str:
    """Return what check_and_fallback_input_schema raises where no activations go with weights."""
    scales, weight = stored.scales, asked.weight
    scale = asked.dtype if scales.dtype == MODEL else scales.dtype
    kind, second = (f"<{name}.{word.upper()}: {word!r}>" if word else "None" for name, word in (
        ("WeightScaleType", scales.kind), ("WeightScale2Type", scales.second)))
    mode = "None" if given.mode is None else (
        f"<InputQuantizationMode.{asked.rules['input_modes'][given.mode]}: {given.mode!r}>")
    return (
        "No compatible Humming input schema for HummingInputSchema(quant_method='humming', "
        f"a_dtype={given.dtype}, input_scale_group_size={given.group}, "
        f"input_scale_dtype={given.scale}, input_quant_mode={mode}) with weight schema "
        f"HummingWeightSchema(quant_method='humming', b_dtype={unsigned(weight.dtype)}, "
        f"bs_dtype={scale}, weight_scale_group_size={weight.group}, "
        f"weight_scale_group_size_n={scales.rows}, weight_scale_type={kind}, "
        f"weight_scale_2_type={second}, has_zero_point={weight.zero_point}, "
        f"is_fp_zero_point={scales.fp_zero_point}, hadamard_block_size={scales.hadamard}) on "
        f"SM{asked.capability} (allow_fallback={fallback})")
