"""MXFP4 weights with MXFP8 activations, made while loading: Ascend NPUs only
(layers/quantization/npu_mxfp4.py:Mxfp4W4A8Config)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, given, names
from quantplan.dispatch.sglang.ignore import both_forms, is_skipped
from quantplan.dispatch.trace import refuse

SOURCE = "layers/quantization/npu_mxfp4.py:Mxfp4W4A8Config.get_quant_method"


def read(config: Config | None, context: Context) -> tuple[str, ...]:
    """Return the names that the class leaves alone."""
    named = given(config or {}, "ignored_layers", "modules_to_not_convert")
    return both_forms(names(named, "ignored_layers"))


def assign(fields: tuple[str, ...], context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer that is left alone; refuse the first other."""
    if site.module.split == "vocab":
        return None
    if is_skipped(context, site.path, fields):
        return unquantized("named in the layers that the class leaves alone")
    raise refuse("layer assignment", "NotImplementedError", "mxfp_w4a8 (MXFP4 weights + MXFP8 "
                 "activations, W4A8) is currently only implemented for the Ascend NPU backend; no "
                 "CUDA/other-device kernel exists yet. Add a device branch here when one lands.",
                 site.path, SOURCE, hint="Choose another --quantization on an NVIDIA GPU.")


def experts(
    fields: tuple[str, ...], context: Context, site: Site, held: Experts
) -> Assignment:
    """Return the assignment of routed experts: they stay in 16 bits."""
    return unquantized_experts("the class has no method for experts", "trtllm")
