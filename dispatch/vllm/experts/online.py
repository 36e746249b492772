"""Experts that are quantized while a 16-bit checkpoint loads
(model_executor/layers/quantization/online/)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.predicates import fill
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.experts.fp8 import dynamic_act, sized_plan, tensor_plan
from quantplan.dispatch.vllm.experts.plan import NO_KEY, After, Experts, Plan, unquantized
from quantplan.dispatch.vllm.online import BLOCK
from quantplan.dispatch.vllm.online_args import OnlineArgs
from quantplan.dispatch.vllm.online_layers import method_class

FOLDER = "model_executor/layers/quantization/online"
SOURCE = "model_executor/layers/quantization/base_config.py:resolve_quant_method"
UNQUANTIZED = "UnquantizedFusedMoEMethod"
MX_BLOCK = 32
"""MXFP4 and MXFP8 groups (utils/mxfp8_utils.py:MXFP8_BLOCK_SIZE)."""


def plan(args: OnlineArgs, experts: Experts) -> Plan:
    """Return the plan of experts of a 16-bit checkpoint."""
    found = _class(args, experts)
    return unquantized("they are left in 16 bits") if found is None else PLANS[found](experts)


def over(args: OnlineArgs, experts: Experts, own: Plan) -> Plan:
    """Return the plan of experts whose checkpoint gives them `own`
    (model_executor/layers/quantization/base_config.py:resolve_quant_method)."""
    found = _class(args, experts)
    if found is None:
        return _activated(args, experts, own)
    if own.method == UNQUANTIZED:
        return PLANS[found](experts)
    refused = experts.context.table["requantization"].get("experts")
    if refused:
        return _refusing(refused, experts, own)
    return PLANS[found](experts)._replace(source=own)


def _refusing(says: str, experts: Experts, own: Plan) -> Plan:
    """Return the checkpoint's plan, refused once its backend is found, which comes first."""
    def refusing(*_: object) -> None:
        raise refuse("layer assignment", "NotImplementedError", says, experts.prefix, SOURCE,
                     hint="Name the experts in ignore of --quantization-config.")
    return own._replace(after=refusing)


def _activated(args: OnlineArgs, experts: Experts, own: Plan) -> Plan:
    """Return the plan with the activations that moe.activation asks for, where its method reads
    that."""
    asked = args.moe.activation if args.moe else None
    row = next((row for row in experts.context.table["moe_activations"] if row["list"] ==
                own.list_id and own.method in row.get("methods", (own.method,))), None)
    if asked is None or row is None:
        return own
    case = ("plain" if own.act == NO_KEY else "unlisted" if asked not in row.get("keys", (asked,))
            else "other" if asked != own.act else "same")
    if case in row:
        texts = experts.context.table["quant_keys"]
        raise refuse("layer assignment", "ValueError",
                     fill(row[case], {"own": texts[own.act], "asked": texts[asked]}),
                     experts.prefix, row["source"],
                     hint="Drop moe.activation of --quantization-config.")
    return own._replace(act=asked, after=_check_backend(row, asked) or own.after)


def _check_backend(row: Mapping[str, Any], asked: str) -> After | None:
    """Return what refuses backends that do not have the asked activations, None for no such key."""
    only = row.get("only")
    if only is None or only["key"] != asked:
        return None

    def after(experts: Experts, backend: str | None, name: str) -> None:
        if backend != only["backend"]:
            raise refuse("kernel selection", "ValueError", only["otherwise"], experts.prefix,
                         row["source"], hint="Drop moe.activation of --quantization-config.")
    return after


def _class(args: OnlineArgs, experts: Experts) -> str | None:
    site = experts.site
    return method_class(args, experts.context, site.path, site.module.module, "experts")


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
    """Return the plan of INT8 experts with a scale per channel: selection asks for activations with
    a scale per token, then get_fused_moe_quant_config gives none, and they stay in 16 bits."""
    return Plan("Int8OnlineMoEMethod", "int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym",
                weight_only=True, asks=False)


def _nvfp4(experts: Experts) -> Plan:
    if experts.context.facts["gpu.family"] != 100:
        raise refuse("layer assignment", "ValueError",
                     "nvfp4_per_token online quantization requires a Blackwell (SM100) GPU.",
                     experts.prefix, f"{FOLDER}/nvfp4.py:Nvfp4OnlineMoEMethod",
                     hint="Use another --quantization on this GPU.")
    return Plan("Nvfp4OnlineMoEMethod", "nvfp4", "kNvfp4Static", "kNvfp4DynamicToken")


def _check_mx(word: str) -> After:
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
    "Fp8PerBlockOnlineMoEMethod": lambda experts: sized_plan(
        "Fp8PerBlockOnlineMoEMethod", BLOCK),
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
