"""Activations of one layer under SGLang's humming (humming 0.1.12 schema/), and what its products
ask when they first run (kernel/humming.py:HummingKernel.check_dtype, check_scale)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.humming_numbers import E4M3, E8M0, Input, Number, Weight, number
from quantplan.dispatch.humming_schemas import (
    Config,
    Fault,
    Rules,
    check_format,
    count,
    fields_of,
    number_format,
)
from quantplan.tables.errors import NotKnownError
from quantplan.tables.mode_rows import modes
from quantplan.tables.record import NamedTuple

FP8_FROM, INT4_FROM = 89, 80
"""The first capabilities that BaseInputSchema.get_fallback_input_dtype keeps FP8 and INT4 on."""
WEIGHT_ONLY: Mapping[tuple[str, str | None], str] = {
    (E4M3, E8M0): "_mxfp8", ("float4e2m1", E8M0): "_mxfp4", ("float4e2m1", E4M3): "_nvfp4"}
PLAIN_FLOATS = {E4M3: "_fp8", "float4e2m1": "_fp4"}
"""Formats of float weights, with that of their scales or with 16-bit ones -> what modes add."""
MXMMA_GROUPS: Mapping[str, tuple[int, ...]] = {
    E4M3: (0, 32), "float8e5m2": (0, 32), "float8e3m4": (0, 32), "float4e2m1": (0, 16, 32)}
"""Activations of block-scaled products on 12.x -> the groups that these take."""


class Given(NamedTuple):
    """Activations as they run; `early` is raised while the tensors are made, `late` once weights
    are loaded."""

    input: Input
    early: Fault | None = None
    late: Fault | None = None


def activations(rules: Rules, config: Config | None, capability: int) -> Given | None:
    """Return the activations of a config, None where its method has no schema for them; raises
    Fault as making the schema does."""
    if config is None or config.get("quant_method") not in rules["input_schemas"]:
        return None
    method = config["quant_method"]
    found = fields_of(rules["input_schemas"][method], config)
    if method == "humming":
        return _own(found)
    if method == "compressed-tensors":
        return _compressed(found, capability)
    if method == "modelopt" and str(found["quant_algo"]).lower() != "nvfp4":
        raise Fault("ValueError", f"unsupported modelopt algo: {found['quant_algo'].lower()}")
    return Given(Input(_kept("float8", capability)))


def _own(found: Config) -> Given:
    dtype, scale = found.get("a_dtype"), found.get("input_scale_dtype")
    return Given(Input(None if dtype is None else number_format(dtype),
                       count(found, "input_scale_group_size"),
                       None if scale is None else number_format(scale)))


def _compressed(found: Config, capability: int) -> Given:
    check_format(found)
    kind = f"{found['type']}{found['num_bits']}"
    static = found["dynamic"] is False or found["dynamic"] == "local"
    if static and not found.get("symmetric", True) and kind != "int8":
        return Given(Input(), early=Fault("AssertionError"))
    if kind not in ("float8", "float4", "int8", "int4"):
        return Given(Input(), late=Fault("ValueError", f"unsupported {kind}"))
    return Given(Input(_kept(kind, capability)))


def _kept(kind: str, capability: int) -> str | None:
    """Return the format that takes the place of the one asked for, None for 16 bits."""
    if kind == "int8" or (kind == "int4" and capability >= INT4_FROM):
        return kind
    if kind == "int4":
        return "int8"
    return E4M3 if capability >= FP8_FROM else None


def mode_of(weight: Weight, act: Number) -> str:
    """Return what is multiplied. Raises NotKnownError for pairs of formats without a name."""
    kind = number(weight.dtype)
    if act.bits == 16:
        added = WEIGHT_ONLY.get((kind.name, weight.scale), PLAIN_FLOATS.get(kind.name, ""))
        mode = f"W{kind.bits}A16{added}"
    elif (kind.name, act.name) == (E4M3, E4M3) and weight.scale != E8M0:
        mode = "W8A8_fp8"
    else:
        plain = kind.whole and act.name == E4M3
        mode = f"W{kind.bits}A{act.bits}_{'fp8' if plain else act.name}"
    if mode not in modes() or (act.bits == 16 and not kind.whole and "_" not in mode):
        raise NotKnownError(f"what humming's {weight.dtype} weights with {act.name} activations "
                            "are called", hint="Such a pair has no name in the table.")
    return mode


def first_fault(rules: Rules, capability: int, weight: Weight, act: Number, group: int
                ) -> str | None:
    """Return how the first product of a layer ends, None where it runs; `group` are the features
    of one scale of the activations, 0 for all."""
    tiles = rules["tiles"].get(str(capability))
    if tiles is None:
        return f"KeyError: {capability} (the package has no tiles for this GPU)"
    if act.name not in tiles:
        return f"AssertionError: the package has no tiles for {act.name} activations on this GPU"
    if not _multiplies(weight, act):
        return f"AssertionError: the package multiplies no {weight.dtype} by {act.name}"
    piece, block_scaled = 256 // act.bits, _block_scaled(capability, weight, act, group)
    for size in filter(None, (weight.group, group)):
        if piece % size if block_scaled else size < piece:
            return f"AssertionError: groups of {size} are smaller than the {piece} of one product"
    return None


def _multiplies(weight: Weight, act: Number) -> bool:
    kind = number(weight.dtype)
    if kind.bits > min(8, act.bits):
        return False
    if kind.whole:
        return act.whole or kind.bits <= act.mantissa + (1 if weight.zero_point else 2)
    if act.whole:
        return (act.name, kind.name, weight.scale) == ("int8", "float4e2m1", E8M0) and (
            weight.group > 0)
    signed = kind.bits == kind.exponent + kind.mantissa + 1
    return (signed and kind.exponent <= act.exponent and kind.mantissa <= act.mantissa
            and (act.exponent == 0 or kind.exponent >= 1))


def _block_scaled(capability: int, weight: Weight, act: Number, group: int) -> bool:
    """Return whether the product takes scales of blocks in hardware
    (config/config.py:LayerConfig.mxmma_supported)."""
    if capability // 10 != 12 or group not in MXMMA_GROUPS.get(act.name, ()):
        return False
    if weight.group == 0:
        return True
    if group and group != weight.group:
        return False
    return (weight.group == 32 and weight.scale == E8M0) or (
        act.bits == 4 and weight.group == 16 and weight.scale in (E8M0, E4M3))


def facts_of(rules: Rules, capability: int, weight: Weight, given: Input, dtype: str
             ) -> dict[str, Any]:
    """Return humming.mode, humming.act and humming.fails of a layer."""
    act = number(given.dtype or dtype)
    told = "none" if act.bits == 16 else "group" if given.group else "per_token"
    return {"humming.mode": mode_of(weight, act), "humming.act": told,
            "humming.fails": first_fault(rules, capability, weight, act, given.group) or "none"}
