"""Routed experts in NVFP4, stored so or made so while loading
(layers/quantization/modelopt_quant.py:ModelOptNvFp4FusedMoEMethod)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import BLACKWELL, Assignment, Context, Site
from quantplan.dispatch.sglang.experts import PADDED_UNDER, Experts
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SOURCE = "layers/quantization/modelopt_quant.py:ModelOptNvFp4FusedMoEMethod"
MARLIN = "layers/quantization/marlin_utils_fp4.py:prepare_moe_nvfp4_layer_for_marlin"
INTERLEAVED = "layers/moe/moe_runner/flashinfer_cutedsl.py:interleave_w13_halves"
METHOD, ONLINE = "ModelOptNvFp4FusedMoEMethod", "ModelOptNvFp4OnlineFusedMoEMethod"
ROWS, HALF = 128, 64
"""Rows to which swizzled block scales are padded, and by which CuTe DSL takes its halves."""
GROUP = 16
LOCAL_SCALES = ("flashinfer_cutlass", "flashinfer_cutedsl")
"""Backends beside TRTLLM for which activation scales are cut to the experts of a rank."""


def nvfp4_experts(
    context: Context, site: Site, held: Experts, group_size: int = GROUP, method: str = METHOD
) -> Assignment:
    """Return the assignment, or refuse as the method does."""
    backend, new = context.facts["moe.backend"], context.gpu.capability >= BLACKWELL
    if not new and backend not in ("auto", "marlin"):
        raise refuse("kernel selection", "ValueError", "Current platform does not support NVFP4 "
                     "quantization with the selected MoE backend. Please use Blackwell and above, "
                     "or use moe_runner_backend=marlin on SM80+.", site.path, f"{SOURCE}.__init__",
                     hint="Pass --moe-backend marlin.")
    if backend == "cutlass":
        raise refuse("kernel selection", "NotImplementedError", "moe_runner_backend=cutlass is not "
                     "supported for NVFP4 MoE. Use --moe-runner-backend flashinfer_cutlass "
                     "instead.", site.path, f"{SOURCE}.create_moe_runner",
                     hint="Pass --moe-backend flashinfer_cutlass.")
    if not new or backend == "marlin":
        refusal = _marlin(group_size, site)
    elif backend in PADDED_UNDER:
        refusal = _trtllm(backend, group_size, held, site)
    else:
        refusal = _others(context, backend, held, site)
    return Assignment(method, operators="experts_nvfp4", refusal=refusal)


def _late(kind: str, message: str, site: Site, source: str, hint: str) -> Exception:
    return refuse("weight loading", kind, message, site.path, source, hint=hint)


def _marlin(group_size: int, site: Site) -> Exception | None:
    if group_size == GROUP:
        return None
    return _late("ValueError", f"NVFP4 Marlin MoE requires group_size={GROUP}, got {group_size}.",
                 site, MARLIN, f"Serve a checkpoint in groups of {GROUP}.")


def _trtllm(backend: str, group_size: int, held: Experts, site: Site) -> Exception | None:
    if group_size == GROUP:
        return None
    if backend != "flashinfer_trtllm":
        return NotKnownError(f"NVFP4 experts in groups of {group_size} on {backend}",
                             hint="Drop --moe-backend.")
    return _late("AssertionError", "Expected w13_weight_scale.dim(2) == "
                 f"{held.hidden // GROUP}, got {held.hidden // group_size}", site,
                 f"{SOURCE}.process_weights_after_loading",
                 f"Serve a checkpoint in groups of {GROUP}.")


def _others(context: Context, backend: str, held: Experts, site: Site) -> Exception | None:
    """Return what ends the start on Blackwell for backends that take the weights as CUTLASS does:
    auto too, as long as the flag itself is auto."""
    if held.number != held.total and backend not in LOCAL_SCALES:
        return _late("RuntimeError", f"Attempting to broadcast a dimension of length {held.number} "
                     f"at -1! Mismatching argument at index 1 had torch.Size([{held.number}]); but "
                     f"expected shape should be broadcastable to [{held.total}]", site,
                     f"{SOURCE}.process_weights_after_loading",
                     "Pass --moe-backend flashinfer_cutlass, or drop expert parallelism.")
    if not held.gated:
        return None
    if backend == "flashinfer_cutedsl" and held.intermediate % HALF:
        return _late("ValueError", f"Expected split dim divisible by group_size={HALF}, got "
                     f"{held.intermediate}.", site, INTERLEAVED, "Use fewer tensor parallel ranks.")
    if 2 * held.intermediate % ROWS:
        return _late("AssertionError", "The intermediate size required padding, but padding is "
                     "also implemented for gated activations", site,
                     f"{SOURCE}.process_weights_after_loading", "Use fewer tensor parallel ranks.")
    return None
