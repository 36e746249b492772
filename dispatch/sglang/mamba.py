"""What Mamba mixers ask of the ranks (layers/attention/mamba/mamba.py:MambaMixer2 and
configs/mamba_utils.py:Mamba2StateShape)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Context, Site
from quantplan.dispatch.trace import refuse

ASKS, ASKS_WIDTH = "mamba_ranks", "mamba1_ranks"
"""Rules of the modules that a mixer builds first."""
FIRST_MIXER = "layers/attention/mamba/mamba1.py:MambaMixer1"
MIXER = "layers/attention/mamba/mamba.py:MambaMixer2"
SHAPE = "configs/mamba_utils.py:Mamba2StateShape"
PROJECTION = "in_proj"


def check_ranks(context: Context, site: Site, method: str | None) -> None:
    """Refuse ranks that do not divide a mixer: its cache first, then its groups, which one group
    alone may be copied of, and only without a quantization config."""
    module, tp = site.module, context.deployment.tp
    if ASKS_WIDTH in module.before and module.parts[0] % tp:
        raise _refused(f"Mamba-1 intermediate_size ({module.parts[0]}) must be divisible by "
                       f"tp_size ({tp})", site, FIRST_MIXER)
    if ASKS not in module.before:
        return
    heads, groups = module.facts["heads"], module.facts["groups"]
    inner, grouped = module.parts[:2]
    held = groups if groups % tp == 0 else tp
    for size in (inner + 2 * held * grouped // groups, heads):
        if size % tp:
            raise _refused(f"{size} is not divisible by {tp}", site, SHAPE)
    if groups % tp == 0:
        return
    if groups != 1:
        raise _refused("If tensor parallel world size does not divide num_groups, then num_groups "
                       "must equal 1.", site, MIXER)
    if method is not None and any(x.quantized for x in context.structure.modules
                                  if x.name == PROJECTION):
        raise _refused("Tensor parallel currently supported for quantized models only if tensor "
                       "parallel world size divides num groups.", site, MIXER)


def _refused(message: str, site: Site, source: str) -> Exception:
    return refuse("shapes under TP", "AssertionError", message, site.path, source,
                  hint="Choose a tensor parallel size that divides the groups of the mixer.")
