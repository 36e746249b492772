"""Which experts an ignore list leaves in 16 bits."""

from __future__ import annotations

from collections.abc import Sequence

from quantplan.dispatch.vllm.experts.plan import Experts
from quantplan.dispatch.vllm.ignore import is_skipped


def experts_skipped(experts: Experts, names: Sequence[str]) -> bool:
    """Return whether experts are skipped by whole names: where their layer is called experts, when
    its name stands in a listed name that holds "experts" (quant_utils.py:is_layer_skipped)."""
    prefix, packed = experts.prefix, experts.context.structure.packed
    if prefix.rsplit(".", 1)[-1] in packed or "experts" not in prefix:
        return is_skipped(prefix, names, packed, substring=False)
    return any("experts" in name and prefix in name for name in names)


def part_named(experts: Experts, names: Sequence[str]) -> bool:
    """Return whether a listed name stands in the layer's name (moe_wna16.py:
    is_layer_skipped_quant, and is_layer_skipped by substrings)."""
    return any(name in experts.prefix for name in names)
