"""Which experts an ignore list leaves in 16 bits."""

from __future__ import annotations

from collections.abc import Iterable


def experts_skipped(prefix: str, names: Iterable[str]) -> bool:
    """Return whether experts are skipped by whole names: when their layer's name stands in a listed
    name that holds "experts" (quant_utils.py:is_layer_skipped)."""
    return any("experts" in name and prefix in name for name in names)


def part_named(prefix: str, names: Iterable[str]) -> bool:
    """Return whether a listed name stands in the layer's name (moe_wna16.py:
    is_layer_skipped_quant, and is_layer_skipped by substrings)."""
    return any(name in prefix for name in names)
