"""Experts that are quantized while a 16-bit checkpoint loads
(model_executor/layers/quantization/online/)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quantplan.dispatch.vllm.context import refuse
from quantplan.dispatch.vllm.experts.fp8 import dynamic_act, tensor_plan
from quantplan.dispatch.vllm.experts.plan import Experts, Plan, unquantized

FOLDER = "model_executor/layers/quantization/online"
MX_BLOCK = 32
"""MXFP4 and MXFP8 groups (utils/mxfp8_utils.py:MXFP8_BLOCK_SIZE)."""


def plan(method: str, experts: Experts) -> Plan:
    """Return the plan of experts under the online method `method`."""
    name = experts.context.table["online_methods"][method].get("experts")
    return PLANS[name](experts) if name else unquantized(f"{method} quantizes linear layers only")


def _per_channel(experts: Experts) -> Plan:
    return tensor_plan("Fp8PtpcOnlineMoEMethod", "kFp8StaticChannelSym", "kFp8DynamicTokenSym",
                       vllm_cutlass=True)._replace(after=_check_channels)


def _check_channels(experts: Experts, backend: str | None, name: str) -> None:
    """Refuse backends that have no per-channel weight scales."""
    if backend in ("MARLIN", "FLASHINFER_CUTLASS", "FLASHINFER_TRTLLM"):
        raise refuse("kernel selection", "ValueError",
                     f"FP8 PTPC online MoE quant is not supported with the {backend} backend, "
                     "which does not implement per-output-channel weight scales.", experts.prefix,
                     f"{FOLDER}/fp8.py:Fp8PtpcOnlineMoEMethod",
                     hint="Use --quantization fp8_per_tensor here.")


def int8_plan() -> Plan:
    """Return the plan of INT8 experts with a scale per channel and per token."""
    return Plan("Int8OnlineMoEMethod", "int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym")


def _nvfp4(experts: Experts) -> Plan:
    if experts.context.facts["gpu.family"] != 100:
        raise refuse("layer assignment", "ValueError",
                     "nvfp4_per_token online quantization requires a Blackwell (SM100) GPU.",
                     experts.prefix, f"{FOLDER}/nvfp4.py:Nvfp4OnlineMoEMethod",
                     hint="Use another --quantization on this GPU.")
    return Plan("Nvfp4OnlineMoEMethod", "nvfp4", "kNvfp4Static", "kNvfp4DynamicToken")


def _check_mx(word: str) -> Callable[[Experts, str | None, str], None]:
    """Return what refuses sizes that are no whole groups, after the backend's padding."""
    def after(experts: Experts, backend: str | None, name: str) -> None:
        sizes = padded_sizes(experts, f"{word.lower()}", backend)
        if any(size % MX_BLOCK for size in sizes):
            raise refuse("shapes under TP", "ValueError",
                         f"Online {word} MoE requires hidden/intermediate sizes divisible by "
                         f"{MX_BLOCK}.", experts.prefix, f"{FOLDER}/{word.lower()}.py",
                         hint="Choose another tensor parallel size.")
    return after


def padded_sizes(experts: Experts, list_id: str, backend: str | None) -> tuple[int, int]:
    """Return hidden and intermediate size of one rank after the padding of the chosen backend."""
    rows = experts.context.table["experts_lists"][list_id]["backends"]
    rounds: Any = next(row.get("rounds", {}) for row in rows if row["id"] == backend)
    hidden, shard = experts.facts["moe.hidden"], experts.facts["moe.shard"]
    return (-(-hidden // rounds.get("hidden", 1)) * rounds.get("hidden", 1),
            -(-shard // rounds.get("intermediate", 1)) * rounds.get("intermediate", 1))


PLANS: dict[str, Callable[[Experts], Plan]] = {
    "Fp8PerTensorOnlineMoEMethod": lambda experts: tensor_plan(
        "Fp8PerTensorOnlineMoEMethod", "kFp8StaticTensorSym", dynamic_act(experts)),
    "Fp8PerBlockOnlineMoEMethod": lambda experts: tensor_plan(
        "Fp8PerBlockOnlineMoEMethod", "kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
    "Fp8PtpcOnlineMoEMethod": _per_channel,
    "Mxfp8OnlineMoEMethod": lambda experts: Plan(
        "Mxfp8OnlineMoEMethod", "mxfp8", "kMxfp8Static", "kMxfp8Dynamic",
        after=_check_mx("MXFP8")),
    "Mxfp4OnlineMoEMethod": lambda experts: Plan(
        "Mxfp4OnlineMoEMethod", "mxfp4", "kMxfp4Static", "kMxfp4Dynamic",
        after=_check_mx("MXFP4")),
    "Int8OnlineMoEMethod": lambda experts: int8_plan(),
    "Nvfp4OnlineMoEMethod": _nvfp4,
}
"""Experts method class -> its plan."""
