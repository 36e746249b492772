"""Checkpoints of 4-bit experts and FP8 linear layers in blocks of 128
(layers/quantization/w4afp8.py)."""

from __future__ import annotations

from quantplan.dispatch.sglang import fp8
from quantplan.dispatch.sglang.context import BLACKWELL, Assignment, Context, Site
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.fields import Config, need
from quantplan.dispatch.sglang.fp8 import Fp8Fields
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

FIELDS = Fp8Fields(True, "dynamic", (), (128, 128))
"""What W4AFp8Config keeps of every checkpoint, and without one."""
DENSE_DOWN = "mlp.down_proj"


def read(config: Config | None, context: Context) -> Fp8Fields:
    """Return the fields: no key of the config changes them but its name, which says that weights
    are stored as FP8."""
    if config is not None and "fp8" not in need(config, "quant_method"):
        raise NotKnownError("w4afp8 of a checkpoint whose weights are not stored as FP8",
                            hint="Spell quant_method in lower case.")
    return FIELDS


def assign(fields: Fp8Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; no name leaves any alone."""
    made = fp8.assign(fields, context, site)
    if made is not None:
        _check_activation(context, site)
    return made


def _check_activation(context: Context, site: Site) -> None:
    """Refuse the dense MLP of model classes that ask how its input may be quantized along with its
    activation: the config class has no such field."""
    asked = context.table["traits"]["dense_activation"]
    if (context.structure.architecture in asked["value"] and context.deployment.tp == 1
            and context.facts["gpu.family"] == BLACKWELL and site.path.endswith(DENSE_DOWN)):
        raise refuse("layer assignment", "AttributeError", "'W4AFp8Config' object has no attribute "
                     "'activation_scheme'", site.path, asked["source"],
                     hint="Serve it on two ranks, or with SGLang 0.5.22.")


def experts(fields: Fp8Fields, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts: one CUTLASS kernel, whatever the backend."""
    return Assignment("W4AFp8MoEMethod", operators="experts_w4afp8", facts={"moe.act": "static"})


kv_algo = fp8.kv_algo
