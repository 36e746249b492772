"""Which activation type a Humming kernel really multiplies: the layer's own, a replacement, or 16
bits (model_executor/layers/quantization/utils/humming/schema.py:check_and_fallback_input_schema;
humming 0.1.17 schema/humming.py:is_humming_schema_compatible)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.humming_numbers import (
    E3M4,
    E4M3,
    E8M0,
    SIXTEEN,
    Input,
    Number,
    Weight,
    number,
)
from quantplan.tables.record import NamedTuple

Rules = Mapping[str, Any]
"""The `humming` row of an engine table."""


class Asked(NamedTuple):
    """One question: weights on a GPU, served in a 16-bit dtype."""

    weight: Weight
    capability: int
    dtype: str
    rules: Rules


def activation(asked: Asked, given: Input, fallback: bool = True) -> str | None:
    """Return the activation format that runs, None where loading fails for want of one.

    `fallback` False keeps what was asked for, or fails.
    """
    found = runtime(asked, given, fallback)
    return None if found is None else found.dtype or asked.dtype


def runtime(asked: Asked, given: Input, fallback: bool = True) -> Input | None:
    """Return the activations that run, None where loading fails for want of any."""
    if asked.dtype not in SIXTEEN:
        return None
    given = eight_bits(given)
    if compatible(asked, given):
        kept = given.dtype or asked.dtype
        if not fallback or number(kept).bits == 16:
            return given
        if not _slow(kept, asked):
            return Input() if _grouped_8_bit(asked, given) else given
    return _replacement(asked, given) if fallback else None


def eight_bits(given: Input) -> Input:
    """Return the activations with FP8 in place of 6-bit floats."""
    six = given.dtype is not None and number(given.dtype).bits == 6
    return given._replace(dtype=E4M3) if six else given


def _grouped_8_bit(asked: Asked, given: Input) -> bool:
    """Return whether 16 bits are preferred to 8: groups on either side, but for MXFP8 from 12.0."""
    kind = number(str(given.dtype))
    mxfp8 = (kind.fp8 and given.group == 32 and given.scale == E8M0 and asked.capability >= 120)
    return kind.bits == 8 and bool(given.group or asked.weight.group) and not mxfp8


def _replacement(asked: Asked, given: Input) -> Input | None:
    tried = (given.dtype, *asked.rules["fallbacks"].get(given.dtype, ()), asked.dtype)
    made = (_dynamic(name, asked) for name in tried if name is not None and not _slow(name, asked))
    return next((found for found in made if compatible(asked, found)), None)


def _dynamic(name: str, asked: Asked) -> Input:
    """Return how a replacement is quantized: per token, but FP8 in MX groups from 12.0."""
    weight = asked.weight
    if name in SIXTEEN:
        return Input(name)
    whole_k, mx = weight.group == 0, weight.group == 32 and weight.scale == E8M0
    if name in (E4M3, E3M4) and asked.capability >= 120 and (whole_k or mx):
        return Input(name, 32, E8M0, "dynamic_group")
    return Input(name, 0, "float32", "dynamic_token")


def _slow(name: str, asked: Asked) -> bool:
    return any(name in row["dtypes"] and row["from"] <= asked.capability <= row.get("to", 999)
               for row in asked.rules["slow"])


def compatible(asked: Asked, given: Input) -> bool:
    """Return whether the package has a kernel for these weights and activations."""
    act = number(given.dtype or asked.dtype)
    weight = number(asked.weight.dtype)
    if act.whole and not weight.whole and weight.exponent == 0:
        weight = Number(f"int{weight.bits}", weight.bits, True)
    operand = _operand(act, weight, asked)
    return (asked.capability >= asked.rules["min_capability"].get(act.name, 9999)
            and asked.rules.get("served_in", {}).get(act.name, asked.dtype) == asked.dtype
            and not _undocumented_gap(act, operand, asked)
            and weight.bits <= min(8, act.bits)
            and _converts(act, weight, operand, asked.weight)
            and _blackwell_scales(act, operand, asked, given)
            and _groups_agree(act, asked, given)
            and _groups_wide(act, weight, asked.weight, given))


def _mxfp4(weight: Weight) -> bool:
    return weight.dtype == "float4e2m1" and weight.scale == E8M0 and weight.group == 32


def _operand(act: Number, weight: Number, asked: Asked) -> Number:
    """Return the format in which weights reach the tensor core (humming/config/mma.py:
    get_mma_b_dtype)."""
    if (act.fp8 and weight.fp8) or (act.fp4 and weight.fp4):
        return weight
    if not act.fp8 or weight.bits >= act.bits:
        return act
    names = [act.name, E4M3]
    if asked.capability in asked.rules["undocumented"]["capabilities"]:
        names.append(E3M4)
    fitting = (n for n in map(number, names) if _fits(weight, n, asked.weight.zero_point))
    return next(fitting, act)


def _fits(weight: Number, target: Number, zero_point: bool) -> bool:
    if weight.whole:
        return weight.bits <= target.mantissa + (1 if zero_point else 2)
    return (weight.mantissa - (weight.exponent == 0) <= target.mantissa
            and weight.exponent <= target.exponent)


def _undocumented_gap(act: Number, operand: Number, asked: Asked) -> bool:
    known = asked.rules["undocumented"]
    used = act.name in known["dtypes"] or (
        operand.name in known["dtypes"] and operand.bits == act.bits)
    return used and asked.capability not in known["capabilities"]


def _converts(act: Number, weight: Number, operand: Number, stored: Weight) -> bool:
    """Return whether weights convert to what the tensor core takes."""
    if act.whole:
        whole = weight.whole and weight.bits <= act.bits
        clash = weight.whole and weight.bits == act.bits and stored.zero_point
        return (whole or (act.bits == 8 and _mxfp4(stored))) and not clash
    if weight.whole:
        return (weight.bits < operand.bits
                and weight.bits <= operand.mantissa + (1 if stored.zero_point else 2))
    if weight.exponent == 0:
        return weight == operand or weight.mantissa <= operand.mantissa + 1
    return weight.mantissa <= operand.mantissa and weight.exponent <= operand.exponent


def _blackwell_scales(act: Number, operand: Number, asked: Asked, given: Input) -> bool:
    """Return whether the undocumented operands have the scales that 10.x and 11.x want."""
    if asked.capability // 10 not in (10, 11):
        return True
    weight, names = asked.weight, (act.name, operand.name)
    if E3M4 in names and not (
            (given.group == 0 or (given.group == 32 and given.scale in (None, E8M0)))
            and (weight.group == 0 or (weight.group == 32 and weight.scale == E8M0))):
        return False
    return "float4e0m3" not in names or (given.group or weight.group or 16) == 16


def _groups_agree(act: Number, asked: Asked, given: Input) -> bool:
    weight = asked.weight
    if not given.group or not weight.group or given.group == weight.group:
        return True
    if not _mxfp4(weight) or asked.capability >= 120:
        return False
    wgmma = (asked.capability == 90 and act.name == E4M3 and given.group == 128
             and given.scale in (None, "float32"))
    return act.bits != 8 or given.scale == weight.scale or wgmma


def _groups_wide(act: Number, weight: Number, stored: Weight, given: Input) -> bool:
    groups = [size for size in (stored.group, given.group) if size]
    if 0 < stored.group < 16 or (act.bits == 8 and any(size < 32 for size in groups)):
        return False
    if act.name == "int4":
        return all(size >= 64 for size in groups)
    if act.bits == 4 and stored.group and weight.fp4:
        scale = given.scale or stored.scale
        known = (E8M0, E4M3)
        return stored.scale in known and (
            not given.group or (scale in known and scale == stored.scale))
    return True
