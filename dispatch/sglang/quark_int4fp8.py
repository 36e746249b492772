"""Quark's 4-bit experts made while loading, AMD GPUs only, beside FP8 linear layers
(layers/quantization/quark_int4fp8_moe.py)."""

from __future__ import annotations

from quantplan.dispatch.sglang import fp8
from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.fields import Config
from quantplan.dispatch.sglang.fp8 import Fp8Fields
from quantplan.dispatch.trace import refuse

SOURCE = "layers/quantization/quark_int4fp8_moe.py:QuarkInt4Fp8MoEMethod"
FIELDS = Fp8Fields(False, "dynamic", ())
"""What QuarkInt4Fp8Config keeps of every checkpoint: all is made while loading."""


def read(config: Config | None, context: Context) -> Fp8Fields:
    """Return the fields, which no config changes."""
    return FIELDS


def experts(fields: Fp8Fields, context: Context, site: Site, held: Experts) -> Assignment:
    """Refuse routed experts."""
    raise refuse("layer assignment", "NotImplementedError", "The quark_int4fp8_moe online "
                 "quantization scheme is only supported on AMD GPUs.", site.path, SOURCE,
                 hint="Choose another --quantization on an NVIDIA GPU.")


assign, kv_algo = fp8.assign, fp8.kv_algo
