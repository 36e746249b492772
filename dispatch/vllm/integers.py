"""What AWQ, GPTQ and pack-quantized layers share: Marlin's type checks and integer facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.environment import readable
from quantplan.dispatch.trace import Finding, refuse
from quantplan.dispatch.vllm.context import Context, Site

INPUT_SOURCE = (
    "model_executor/layers/quantization/utils/marlin_utils.py:get_marlin_input_dtype")
GROUP_SIZES = (-1, 32, 64, 128)
"""marlin_utils.py:MARLIN_SUPPORTED_GROUP_SIZES."""
ITEM_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "int8": 8, "float8_e4m3fn": 8}
ACT_KEYS = {"int8": ("int8_token", 0), "float8_e4m3fn": ("fp8_token", 0)}
"""kernels/linear/mixed_precision/humming.py:_ACT_QUANT_KEYS."""
ACT_SUFFIX = {"int8": "8_int8", "float8_e4m3fn": "8_fp8"}


def marlin_unsupported(capability: int, weight_type: str, group: int, zero_points: bool
                       ) -> str | None:
    """Return Marlin's own reason against a weight type and group size, or None if it has none."""
    types = [] if capability < 75 else ["uint4"] if zero_points else [
        "uint4b8", "uint8b128", "float8_e4m3fn", "float4_e2m1f"]
    if weight_type not in types:
        shown = ", ".join(f"ScalarType.{t}" for t in types)
        return (f"Marlin does not support weight_bits = {weight_type}. Only types = [{shown}] are "
                f"supported (for group_size = {group}, device_capability = {capability}, "
                f"zp = {zero_points}).")
    if group not in GROUP_SIZES:
        return (f"Marlin does not support group_size = {group}. Only group_sizes = "
                f"{list(GROUP_SIZES)} are supported.")
    return None


def marlin_input_dtype(context: Context, site: Site) -> str | None:
    """Return the 8-bit activation type that VLLM_MARLIN_INPUT_DTYPE asks for, or None.

    Refuses as the engine does: fp8 only on 8.9 and 12.x, and no other value than int8 and fp8.
    """
    value = readable("VLLM_MARLIN_INPUT_DTYPE", context.facts, site.path)
    if value is None or value == "int8":
        return None if value is None else "int8"
    if context.gpu.capability != 89 and context.facts["gpu.family"] != 120:
        raise refuse("layer assignment", "ValueError",
                     "Marlin W4A8-FP8 only support SM89 or SM12x device (It is slower than Marlin "
                     "W4A16 on other devices). You can consider using W4A8-INT8 instead(set "
                     "VLLM_MARLIN_INPUT_DTYPE=int8).", site.path, INPUT_SOURCE,
                     hint="Set VLLM_MARLIN_INPUT_DTYPE=int8, or unset it.")
    return "float8_e4m3fn"


def integer_quant(  # noqa: PLR0917 - one argument per field of MPLinearLayerConfig
    site: Site, weight_type: str, bits: int, group: int, zero_points: bool, act: str,
    humming_input: tuple[str, int] = ("none", 0),
) -> dict[str, Any]:
    """Return the facts of MPLinearLayerConfig (mixed_precision/MPLinearKernel.py) for a layer.

    `humming_input` is the activation key that only Humming reads, where `act` is 16-bit, and its
    group size.
    """
    act_key, act_group = ACT_KEYS.get(act, humming_input)
    return {
        "quant.weight_type": weight_type,
        "quant.bits": bits,
        "quant.group_size": group,
        "quant.zero_points": zero_points,
        "quant.act_type": act,
        "quant.act_mode": ACT_SUFFIX.get(act, str(ITEM_BITS[act])),
        "quant.pack_factor": 32 // bits,
        "quant.channelwise": group == -1,
        "quant.grouped": group != -1 and group < site.shard.k_full,
        "quant.group_is_full_k": group == site.shard.k_full,
        "quant.g_idx": False,
        "quant.act_key": act_key,
        "quant.act_group": act_group,
    }


def whole_scales(context: Context, site: Site, quant: Mapping[str, Any]) -> Finding | None:
    """Return a note of scales that every rank keeps whole: those of groups that are ordered by
    activation, in a layer whose inputs are split."""
    if not quant["quant.g_idx"] or site.module.split != "row" or context.deployment.tp == 1:
        return None
    return Finding("weight loading", "info", "scales-on-every-rank",
                   f"{site.path} and others like it: activation order (g_idx) spreads a group's "
                   "inputs over all ranks, so each rank keeps the scales of the whole layer",
                   "Weights without activation order keep a rank's own scales only.",
                   "model_executor/layers/quantization/utils/marlin_utils.py:"
                   "marlin_repeat_scales_on_all_ranks")


def act_words(act: str) -> str:
    """Return "none" for 16-bit activations, "per_token" for the 8-bit ones Marlin quantizes."""
    return "per_token" if act in ACT_SUFFIX else "none"
