"""What CUDA graphs take, and what the engine sets aside for them before it counts the KV cache."""

from __future__ import annotations

from quantplan.planner.lines import MEASURED, MODELLED, BudgetLine
from quantplan.planner.serving import Serving

MEASURED_SIZES = 51
"""Sizes of the graphs behind the constants: up to 512 tokens."""


def estimate_is_subtracted(serving: Serving) -> bool:
    """Return whether the engine takes its estimate of the graphs from the KV cache."""
    return bool(serving.graph_tokens) and bool(
        serving.rules.rule("cudagraph_estimate_subtracted", serving.facts).value)


def graphs_line(serving: Serving, num_layers: int, *, estimated: bool) -> BudgetLine:
    """Return the bytes of all CUDA graphs of one rank with `num_layers`: as the engine estimates
    them, or as capturing them took."""
    name = "graphs_estimate" if estimated else "graphs"
    base = serving.rules.rule(f"{name}_base", serving.facts)
    layer = serving.rules.rule(f"{name}_per_layer", serving.facts)
    count = len(serving.graph_tokens)
    share = count / MEASURED_SIZES
    size = round((base.bytes + num_layers * layer.bytes) * share)
    formula = (f"({base.value:g} GiB + {num_layers} layers x {layer.value:g} GiB) x {count} sizes "
               f"of {MEASURED_SIZES}")
    return BudgetLine("CUDA graphs" + (", estimated" if estimated else ""), size, formula,
                      base.origin, MEASURED if count == MEASURED_SIZES else MODELLED,
                      base.plus_minus_bytes)
