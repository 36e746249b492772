"""Routed experts as one rank holds them: the first matrices of all its experts in one tensor, the
second ones in another (vllm 0.32.0 model_executor/layers/fused_moe/routed_experts.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import lcm
from typing import Any

from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.structure import Leaf, Module, Structure
from quantplan.dispatch.trace import Trace
from quantplan.dispatch.weight_format import read_format
from quantplan.planner.cuts import COPIES, Cut, cut_leaves, uneven
from quantplan.tables.errors import NotKnownError
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple


class Alignment(NamedTuple):
    """What a backend rounds the sizes of one rank's experts up to; `ungated` and `narrow` are of
    the intermediate size of experts without a gate, and of hidden sizes that 128 does not divide,
    where those are others."""

    intermediate: int = 1
    hidden: int = 1
    whole_groups: bool = False
    ungated: int | None = None
    narrow: int | None = None

    def of(self, hidden: int, gated: bool) -> int:
        """Return what the intermediate size of such experts is rounded up to."""
        other = (self.ungated if not gated else None) or (self.narrow if hidden % 128 else None)
        return other or self.intermediate


TABLES = {"vllm": "memory/experts", "sglang": "memory/sglang-experts"}


class Spread(NamedTuple):
    """How experts lie on the ranks: `cut` ranks share each of them, `ranks` hold whole ones of
    their own; the sizes of one rank are rounded up as `alignment` says."""

    cut: int = 1
    ranks: int = 1
    alignment: Alignment = Alignment()


def alignment(experts_list: str, backend: str, table: str = TABLES["vllm"]) -> Alignment:
    """Return what the backend of a list of the engine's experts_lists rounds sizes up to."""
    facts = {"moe.list": experts_list, "moe.backend": backend}
    rows = read_table(table)["rows"]
    return next((Alignment(**row["value"]) for row in rows
                 if all(_holds(condition, facts) for condition in row["when"])), Alignment())


def _holds(condition: Mapping[str, Any], facts: Mapping[str, str]) -> bool:
    wanted = condition.get("in", [condition.get("equals")])
    return facts[condition["fact"]] in wanted


def placed(
    structure: Structure, deployment: Deployment, trace: Trace | None, config: Mapping[str, Any]
) -> Structure:
    """Return the structure `stacked` as the deployment spreads experts, in the format of `config`,
    the served part of config.json."""
    try:
        weights = read_format(config)
    except NotKnownError:
        weights = None
    return stacked(structure, in_groups(spread_of(deployment, trace),
                                        weights.group if weights else -1))


def spread_of(deployment: Deployment, trace: Trace | None) -> Spread:
    """Return how a deployment spreads experts, rounded for the backend that serves the first ones
    of the trace (vllm 0.32.0 model_executor/layers/fused_moe/config.py:FusedMoEParallelConfig)."""
    ranks = deployment.tp * deployment.dp
    layers = trace.layers if trace else ()
    served = next((x for x in layers if x.moe_backend is not None and x.selection), None)
    rounded = alignment(served.selection.family, str(served.moe_backend), TABLES[trace.engine]) if (
        trace and served is not None and served.selection is not None) else Alignment()
    whole = deployment.expert_parallel
    return Spread(1 if whole else ranks, ranks if whole else 1, rounded)


def stacked(structure: Structure, spread: Spread) -> Structure:
    """Return the structure with the two stacks of matrices of routed experts as modules: with the
    sizes of one rank, whose experts the fact `copies` counts. Those that are stacked already stay.

    Raises UsageError where an expert does not divide over the ranks.
    """
    return structure._replace(modules=tuple(
        stack for module in structure.modules
        for stack in (_stacks(module, spread) if is_whole(module) else [module])))


def expert_tensors(
    module: Module, spread: Spread, group: int = -1
) -> Iterator[tuple[Module, list[Cut]]]:
    """Yield the stacks of the routed experts `module` with their cuts; one that is a stack itself
    stays what it is. Weights in `group` inputs per scale may need whole groups."""
    for stack in _stacks(module, in_groups(spread, group)) if is_whole(module) else [module]:
        yield stack, cut_leaves(stack, 1)


def in_groups(spread: Spread, group: int) -> Spread:
    """Return the spread with sizes rounded to whole groups of inputs where the backend wants it."""
    rounded = spread.alignment
    if not rounded.whole_groups or group < 1:
        return spread
    whole = lcm(rounded.intermediate, group)
    return spread._replace(alignment=rounded._replace(intermediate=whole, whole_groups=False))


def is_whole(module: Module) -> bool:
    """Return whether `module` is routed experts that are not stacked yet."""
    return module.kind == "experts" and COPIES not in module.facts


def _stacks(module: Module, spread: Spread) -> list[Module]:
    facts, rounded = module.facts, spread.alignment
    if facts["intermediate"] % spread.cut:
        raise uneven(module.path, spread.cut, str(facts["intermediate"]))
    gated = bool(facts.get("gated", True))
    inner = _up(facts["intermediate"] // spread.cut, rounded.of(facts["hidden"], gated))
    outer = _up(facts["hidden"], rounded.hidden)
    first = [Leaf(name, inner, outer) for name in FIRST[:2 if gated else 1]]
    more = {**facts, COPIES: _up(facts["experts"], spread.ranks) // spread.ranks}
    return [module._replace(leaves=tuple(leaves), bias=bool(facts.get("bias")), facts=more)
            for leaves in (first, [Leaf("w2", outer, inner)])]


FIRST = ("w1", "w3")
"""An expert's gate, or its only first matrix, and its up projection."""


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
