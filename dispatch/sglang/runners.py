"""Whether the runner of routed experts can be made (layers/moe/moe_runner/runner.py:MoeRunner)."""

from __future__ import annotations

from quantplan.dispatch.predicates import fill
from quantplan.dispatch.sglang.context import NO_EXCHANGE, Assignment, Context, Site
from quantplan.dispatch.sglang.operators import Choice
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SOURCE = "layers/moe/moe_runner/runner.py:MoeRunner.__init__"
FUSED_ALONE = ("marlin", "flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutlass",
               "flashinfer_cutedsl", "flashinfer_mxfp4")
"""Runners that are one function, which none registers for tokens that are exchanged."""
OWN_WEIGHTS = ("ModelOptNvFp4FusedMoEMethod", "ModelOptNvFp4OnlineFusedMoEMethod")
"""Methods whose weights become those of the exchange's own kernels on every GPU that has them."""


def check_runner_made(context: Context, choice: Choice, assignment: Assignment, site: Site) -> None:
    """Refuse as MoeRunner does when it is made. Raises NotKnownError for experts that the kernels
    of an exchange serve."""
    facts, row = context.facts, choice.row or {}
    if "refuses" in row:
        raise refuse("kernel selection", row["refuses"]["type"],
                     fill(row["refuses"]["message"], facts), site.path, row["source"],
                     hint=row["refuses"]["hint"])
    exchange = facts["moe.exchange"]
    if exchange == NO_EXCHANGE:
        return
    if assignment.method in OWN_WEIGHTS or _is_repacked(context, assignment):
        raise NotKnownError(f"{assignment.method} with --moe-backend {exchange}", hint="DeepGEMM "
                            "repacks such weights into a layout whose limits are not in the table.")
    shared = context.structure.sizes.get("shared_experts")
    if shared and not facts["moe.fused"] and context.deployment.tp > 1:
        raise NotKnownError(f"shared experts with --moe-backend {exchange} on several ranks",
                            hint="The engine holds them whole on every rank then.")
    if row.get("runner") in FUSED_ALONE:
        raise refuse("kernel selection", "NotImplementedError", "Runner backend MoeRunnerBackend."
                     f"{row['runner'].upper()} requires a fused func for a2a backend {exchange}, "
                     "but none is registered.", site.path, SOURCE, hint="Drop --moe-backend.")


def _is_repacked(context: Context, assignment: Assignment) -> bool:
    """Return whether FP8 in blocks becomes the kernel's on 9.0, or packed MXFP4 on 10.x
    (layers/quantization/fp8.py:Fp8MoEMethod.process_weights_after_loading_block_quant)."""
    if assignment.operators == "experts_packed":
        return True
    return (assignment.method == "Fp8MoEMethod" and context.facts["gpu.family"] == 90
            and assignment.facts.get("fp8.block", "none") != "none")
