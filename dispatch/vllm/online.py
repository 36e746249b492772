"""Quantization while loading a 16-bit checkpoint: --quantization fp8, fp8_per_tensor and others
(model_executor/layers/quantization/online/)."""

from __future__ import annotations

from quantplan.dispatch.trace import Selection
from quantplan.dispatch.vllm import fp8
from quantplan.dispatch.vllm.context import Assignment, Context, Site, refuse
from quantplan.dispatch.vllm.ct_layers import mxfp4_quant

SOURCE = "model_executor/layers/quantization/online/fp8.py"


def assign(method: str, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer under the online method `method`."""
    if site.module.split == "vocab":
        return None
    linear = context.table["online_methods"][method]["linear"]
    if linear == "none":
        return Assignment("UnquantizedLinearMethod", why=f"{method} quantizes experts only")
    if linear in MICROSCALED:
        return _microscaled(linear, context, site)
    family, weight, act = FAMILIES[linear]
    if act == "by_device":
        act = fp8.activation_scale(False, context)
    quant = fp8.scale_quant(weight, act, static=False)
    return Assignment(linear, None, family, quant, fp8.act_name(quant))


def _microscaled(linear: str, context: Context, site: Site) -> Assignment:
    assignment = Assignment(linear, None, MICROSCALED[linear], mxfp4_quant("mxfp4", 32), "group")
    if linear == "Mxfp8OnlineLinearMethod":  # Mxfp4OnlineLinearMethod selects first
        _check_groups(assignment, site)
    return assignment


MICROSCALED = {"Mxfp8OnlineLinearMethod": "mxfp8", "Mxfp4OnlineLinearMethod": "mxfp4"}
"""Linear method -> kernel family; weights and activations in groups of 32 along K."""

FAMILIES = {
    "Fp8PerTensorOnlineLinearMethod": ("fp8_w8a8", "tensor", "by_device"),
    "Fp8PerBlockOnlineLinearMethod": ("fp8_block_w8a8", "block128x128", "group128"),
    "Fp8PtpcOnlineLinearMethod": ("fp8_w8a8", "channel", "token"),
}
"""Linear method -> kernel family, weight scale, activation scale (by_device: as for fp8
checkpoints, read from the device when the module is imported)."""


def _check_groups(assignment: Assignment, site: Site) -> None:
    """Refuse inputs that are no whole groups of 32 (Mxfp8- and Mxfp4OnlineLinearMethod)."""
    if assignment.method in MICROSCALED and site.shard.k % 32:
        raise refuse("shapes under TP", "ValueError",
                     f"{MICROSCALED[assignment.method].upper()} requires input_size_per_partition "
                     f"({site.shard.k}) to be divisible by 32.", site.path,
                     "model_executor/layers/quantization/online/mxfp8.py, mxfp4.py")


def after_selection(
    context: Context, site: Site, assignment: Assignment, selection: Selection
) -> Assignment:
    """Refuse per-channel weights on Marlin, which would drop their per-token activations."""
    _check_groups(assignment, site)
    ptpc = assignment.method == "Fp8PtpcOnlineLinearMethod"
    if ptpc and selection.kernel == "MarlinFP8ScaledMMLinearKernel":
        raise refuse("kernel selection", "ValueError",
                     "FP8 PTPC online quant requires a kernel that honors per-token activation "
                     "quantization; MarlinFP8 is W8A16 weight-only. Requires SM89+ for Cutlass "
                     "FP8 or ROCm MI3xx for rowwise scaled_mm.", site.path,
                     f"{SOURCE}:Fp8PtpcOnlineLinearMethod.create_weights",
                     hint="Use --quantization fp8_per_tensor here.", selection=selection)
    return assignment
