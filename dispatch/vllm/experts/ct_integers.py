"""Integer weights of compressed-tensors experts: WNA16, W4A8 with FP8 and with INT8 activations
(compressed_tensors_moe_wna16.py, compressed_tensors_moe_w4a8_fp8.py, ..._w4a8_int8.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import trait
from quantplan.dispatch.vllm.ct_schemes import GROUP_ORDERS, Group
from quantplan.dispatch.vllm.experts.integers import SYMMETRY, integer_facts, marlin_fits
from quantplan.dispatch.vllm.experts.plan import Experts, Plan
from quantplan.dispatch.vllm.integers import marlin_input_dtype

if TYPE_CHECKING:
    from fractions import Fraction

FOLDER = "model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe"
WNA16_SOURCE = f"{FOLDER}/compressed_tensors_moe_wna16.py:CompressedTensorsWNA16MoEMethod"
W4A8_SOURCE = f"{FOLDER}/compressed_tensors_moe_w4a8_fp8.py:CompressedTensorsW4A8Fp8MoEMethod"
INT8_SOURCE = f"{FOLDER}/compressed_tensors_moe_w4a8_int8.py:CompressedTensorsW4A8Int8MoEMethod"
PACKED = "pack-quantized"
W4A8_GROUP, W4A8_MULTIPLE = 128, 256
"""What CUTLASS asks of W4A8 experts (compressed_tensors_moe_w4a8_fp8.py)."""


def wna16(group: Group, experts: Experts) -> Plan:
    """Return the plan of weight-only integer experts."""
    weights = group.weights
    rules = experts.context.table["schemes"]["CompressedTensorsWNA16"]["integer"]
    types = rules["types"]
    if str(weights.num_bits) not in types or group.format != PACKED:
        raise refuse("layer assignment", "ValueError",
                     _only_packed(experts, [int(bits) for bits in types], weights.num_bits),
                     experts.prefix,
                     f"{FOLDER}/compressed_tensors_moe.py:CompressedTensorsMoEMethod",
                     hint="Experts without activation quantization take packed integers only.")
    size = -1 if weights.group_size is None else weights.group_size
    named = types if weights.symmetric else rules["zero_point_types"]
    quant = {**integer_facts("QuantizationArgs", size, not weights.symmetric, False,
                             weights.strategy == "group"),
             "quant.weight_type": named[str(weights.num_bits)], "quant.bits": weights.num_bits,
             "quant.symmetry": SYMMETRY[weights.symmetric]}

    def after(experts: Experts, backend: str | None, name: str) -> None:
        _check_strategy(group, experts, backend)
        _check_sizes(group, size, experts)

    fits = marlin_fits(experts, size, padded=weights.actorder not in GROUP_ORDERS)
    methods = trait(experts.context.table, "ct_wna16_experts")
    return Plan(methods["marlin" if fits else "other"], "int_wna16", _key(group, size), quant=quant,
                after=after)


def _only_packed(experts: Experts, supported: list[int], found: object) -> str:
    """Return the refusal's words; where an exception takes them in parts, these print as a tuple.
    """
    if trait(experts.context.table, "ct_refusals_in_parts"):
        return str(("For Fused MoE layers, only format: ", f"{PACKED} ",
                    f" and bits: {supported} is supported ",
                    f"but got format: {PACKED}  and bits: {found}"))
    return (f"For Fused MoE layers, only format: {PACKED} and bits: {supported} is supported but "
            f"got format: {PACKED} and bits: {found}")


def _key(group: Group, size: int) -> str:
    suffix = "" if group.weights.symmetric else "Asym"
    if group.weights.num_bits == 4:
        return f"kInt4Static{'32' if size == 32 else ''}{suffix}"
    if group.weights.num_bits == 8:
        return "int8_asym" if suffix else "kInt8Static"
    return "int_channel" if size == -1 else "int_group"


def _check_strategy(group: Group, experts: Experts, backend: str | None) -> None:
    if backend in ("MARLIN", "BATCHED_MARLIN"):
        marlin_input_dtype(experts.context, experts.site)
    elif group.weights.strategy != "group":
        forced = experts.context.facts["flag.moe_backend"] != "auto"
        raise refuse("layer assignment", "AssertionError", "", experts.prefix, WNA16_SOURCE,
                     hint=f"The backend {backend} takes groups only: "
                     + ("drop --moe-backend." if forced else "quantize the experts in groups."))


def _check_sizes(group: Group, size: int, experts: Experts) -> None:
    hidden, shard = experts.facts["moe.hidden"], experts.facts["moe.shard"]
    if group.weights.strategy != "channel":
        if hidden % size:
            raise _bad_size(experts, "CompressedTensors WNA16 MoE requires hidden_size "
                            f"({hidden}) to be divisible by group_size ({size}).")
        if shard % size:
            raise _bad_size(
                experts, "CompressedTensors WNA16 MoE with static group scales requires the MoE "
                f"intermediate size per tensor-parallel partition ({shard}) to be divisible by "
                f"group_size ({size}). Scale groups would otherwise cross TP shard boundaries; use "
                "a compatible TP size or enable expert parallelism.")
    if not group.weights.symmetric:
        from fractions import Fraction  # 2 ms that few answers need

        _check_zero_points(Fraction(32, group.weights.num_bits), hidden, shard, experts)


def _check_zero_points(factor: Fraction, hidden: int, shard: int, experts: Experts) -> None:
    if 2 * shard % factor:
        raise _bad_size(
            experts, "CompressedTensors WNA16 MoE: gate+up output channels per TP rank (2 * "
            f"intermediate_size_per_partition = {2 * shard}) must be divisible by packed_factor "
            f"({factor}). Use a TP size where 2 * intermediate_size is divisible by {factor}.")
    if hidden % factor:
        raise _bad_size(experts, f"CompressedTensors WNA16 MoE: hidden_size ({hidden}) must be "
                        f"divisible by packed_factor ({factor}) for correct ZP unpacking.")


def _bad_size(experts: Experts, message: str) -> Exception:
    return refuse("shapes under TP", "ValueError", message, experts.prefix,
                  f"{WNA16_SOURCE}.create_weights",
                  hint="Use a tensor parallel size that leaves whole groups, or "
                  "--enable-expert-parallel.")


def w4a8_fp8(group: Group, experts: Experts) -> Plan:
    """Return the plan of 4-bit experts with FP8 activations."""
    if group.weights.group_size != W4A8_GROUP:
        raise refuse("layer assignment", "AssertionError",
                     "Only group size 128 supported for W4A8 MoE", experts.prefix, W4A8_SOURCE)
    act = "kFp8DynamicTokenSym"
    return Plan("CompressedTensorsW4A8Fp8MoEMethod", "w4a8", "kInt4Static", act, own_act=act,
                after=_check_w4a8)


def _check_w4a8(experts: Experts, backend: str | None, name: str) -> None:
    for fact, word in (("moe.hidden", "hidden_size"),
                       ("moe.shard", "intermediate_size_per_partition")):
        size: Any = experts.facts[fact]
        if size % W4A8_MULTIPLE:
            raise refuse("shapes under TP", "AssertionError",
                         f"{word}={size} must be divisible by {W4A8_MULTIPLE}", experts.prefix,
                         f"{W4A8_SOURCE}.create_weights",
                         hint="Choose another tensor parallel size, or --enable-expert-parallel.")


def w4a8_int8(group: Group, experts: Experts) -> Plan:
    """Return the plan of 4-bit experts with INT8 activations, which no NVIDIA device serves."""
    size, hidden = group.weights.group_size, experts.facts["moe.hidden"]
    shard = experts.facts["moe.shard"]
    if size is not None and size != -1 and (hidden % size or shard % size):
        raise refuse("shapes under TP", "ValueError",
                     f"Group size ({size}) must evenly divide both hidden size ({hidden}) and "
                     f"intermediate size per partition ({shard}).", experts.prefix, INT8_SOURCE)
    return Plan("CompressedTensorsW4A8Int8MoEMethod", "w4a8_int8")
