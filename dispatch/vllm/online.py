"""Quantization while loading a 16-bit checkpoint: --quantization fp8, fp8_per_tensor and others
(model_executor/layers/quantization/online/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.shard import whole_pieces
from quantplan.dispatch.trace import Finding, Selection, refuse
from quantplan.dispatch.vllm import fp8
from quantplan.dispatch.vllm.context import Assignment, Context, Site, Table
from quantplan.dispatch.vllm.ct_layers import mxfp4_quant
from quantplan.dispatch.vllm.online_args import OnlineArgs
from quantplan.dispatch.vllm.online_layers import method_class
from quantplan.tables.errors import NotKnownError

SOURCE = "model_executor/layers/quantization/online/fp8.py"


UNQUANTIZED = "UnquantizedLinearMethod"


def assign(args: OnlineArgs, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer of a 16-bit checkpoint."""
    layer = None if site.module.split == "vocab" else "linear"
    found = method_class(args, context, site.path, site.module.module, layer)
    if layer is None:
        return None
    return Assignment(UNQUANTIZED, why=_left(args)) if found is None else _built(
        found, context, site)


def _left(args: OnlineArgs) -> str:
    """Return why a layer is left in 16 bits."""
    if args.targets is not None:
        return "no target names it"
    return "named in ignore" if args.linear and args.linear.weight else (
        "experts only are quantized")


def over(
    args: OnlineArgs, context: Context, site: Site, own: Assignment | None
) -> Assignment | None:
    """Return the assignment of a layer whose checkpoint gives it `own`
    (model_executor/layers/quantization/base_config.py:resolve_quant_method)."""
    if own is None or site.module.split == "vocab":
        return own
    found = method_class(args, context, site.path, site.module.module, "linear")
    if found is None:
        return own
    built = _built(found, context, site)
    if own.method == UNQUANTIZED:
        return built
    note = None if weight_row(context.table, own).get("dequantizes") else _stuck(own, site)
    return built._replace(scheme=own.scheme, source=own, note=note,
                          why=f"quantized again, on top of {own.method}")


def _stuck(own: Assignment, site: Site) -> Finding:
    return Finding("weight loading", "error", "quantized-twice",
                   f"{site.path}: --quantization-config quantizes again what the checkpoint has "
                   f"quantized; loading fails, as {own.method} does not implement "
                   "dequantize_weight",
                   "Name such layers in its ignore, or drop it.",
                   "model_executor/layers/quantization/base_config.py:QuantizeMethodBase")


def is_online(assignment: Assignment) -> bool:
    """Return whether an online method serves the layer."""
    return assignment.method in FAMILIES or assignment.method in MICROSCALED


def _built(linear: str, context: Context, site: Site) -> Assignment:
    if linear in MICROSCALED:
        return _microscaled(linear, context, site)
    family, weight, act = FAMILIES[linear]
    if act == "by_device":
        act = fp8.activation_scale(False, context)
    quant = fp8.block_quant(BLOCK) if weight == "block" else fp8.scale_quant(
        weight, act, static=False)
    return Assignment(linear, None, family, quant, fp8.act_name(quant))


def _microscaled(linear: str, context: Context, site: Site) -> Assignment:
    assignment = Assignment(linear, None, MICROSCALED[linear], mxfp4_quant(context, "mxfp4", 32),
                            "group")
    if linear == "Mxfp8OnlineLinearMethod":  # Mxfp4OnlineLinearMethod selects first
        _check_groups(assignment, site)
    return assignment


MICROSCALED = {"Mxfp8OnlineLinearMethod": "mxfp8", "Mxfp4OnlineLinearMethod": "mxfp4"}
"""Linear method -> kernel family; weights and activations in groups of 32 along K."""

BLOCK = (128, 128)
"""What per-block FP8 quantization scales together (Fp8PerBlockOnlineLinearMethod)."""

FAMILIES = {
    "Fp8PerTensorOnlineLinearMethod": ("fp8_w8a8", "tensor", "by_device"),
    "Fp8PerBlockOnlineLinearMethod": ("fp8_block_w8a8", "block", "group"),
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
                     "model_executor/layers/quantization/online/mxfp8.py, mxfp4.py",
                     hint=whole_pieces(site.shard.k_full, 32, "groups"))


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


def source_weight(
    context: Context, site: Site, assignment: Assignment, own: Assignment
) -> Site:
    """Return the site with the weight that a layer's own method keeps, of which the online kernel
    is asked; refuses where it keeps none. `own` is the assignment that the checkpoint gives it."""
    if assignment.method == "Mxfp4OnlineLinearMethod":  # it asks of no shape
        return site
    row = weight_row(context.table, own)
    if row["weight"] == "none":
        raise refuse("layer assignment", "AttributeError",
                     f"'{site.module.module}' object has no attribute 'weight'", site.path,
                     context.table["requantization"]["source"],
                     hint=f"{own.method} keeps no weight that can be quantized again: name the "
                     "layer in ignore of --quantization-config.")
    half = row["weight"] == "half"
    return site._replace(shard=site.shard._replace(k=site.shard.k // 2)) if half else site


def weight_row(table: Table, own: Assignment) -> Mapping[str, Any]:
    """Return what a layer's own method keeps as layer.weight; NotKnownError where no row says."""
    for row in table["requantization"]["weights"]:
        if (own.method in row["methods"] and own.scheme in row.get("schemes", (own.scheme,))
                and own.family in row.get("families", (own.family,))):
            found: Mapping[str, Any] = row
            return found
    raise NotKnownError(f"what {own.method} keeps of a layer that is to be quantized again",
                        hint="Name the layer in ignore of --quantization-config.")
