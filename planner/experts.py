"""Routed experts as one rank holds them: the first matrices of all its experts in one tensor, the
second ones in another (vllm 0.32.0 model_executor/layers/fused_moe/routed_experts.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import lcm
from typing import Any, NamedTuple

from quantplan.dispatch.structure import Leaf, Module
from quantplan.planner.cuts import Cut, uneven
from quantplan.tables.load import read_table

BIASED = "bias"


class Alignment(NamedTuple):
    """What a backend rounds the sizes of one rank's experts up to."""

    intermediate: int = 1
    hidden: int = 1
    whole_groups: bool = False


class Spread(NamedTuple):
    """How experts lie on the ranks: `cut` ranks share each of them, `ranks` hold whole ones of
    their own; the sizes of one rank are rounded up as `alignment` says."""

    cut: int = 1
    ranks: int = 1
    alignment: Alignment = Alignment()


def alignment(experts_list: str, backend: str) -> Alignment:
    """Return what the backend of a list of the engine's experts_lists rounds sizes up to."""
    facts = {"moe.list": experts_list, "moe.backend": backend}
    rows = read_table("memory/experts")["rows"]
    return next((Alignment(**row["value"]) for row in rows
                 if all(_holds(condition, facts) for condition in row["when"])), Alignment())


def _holds(condition: Mapping[str, Any], facts: Mapping[str, str]) -> bool:
    wanted = condition.get("in", [condition.get("equals")])
    return facts[condition["fact"]] in wanted


def expert_tensors(
    module: Module, spread: Spread, group: int = -1
) -> Iterator[tuple[Module, list[Cut]]]:
    """Yield the two stacks of matrices of the experts `module`, each as a module with its cuts.

    A cut counts one expert, `copies` the experts of the rank; weights in `group` inputs per scale
    may need whole groups. Raises UsageError where an expert does not divide over the ranks.
    """
    facts = module.facts
    whole, hidden = facts["intermediate"], facts["hidden"]
    if whole % spread.cut:
        raise uneven(module.path, spread.cut, str(whole))
    rounded = spread.alignment
    multiple = lcm(rounded.intermediate, group) if (
        rounded.whole_groups and group > 0) else rounded.intermediate
    mine, wide = _up(whole // spread.cut, multiple), _up(hidden, rounded.hidden)
    copies = _up(facts["experts"], spread.ranks) // spread.ranks
    first = ("w1", "w3") if facts.get("gated", True) else ("w1",)
    cut = Cut(mine, wide, mine, wide, 0, copies)
    yield (_stack(module, [Leaf(name, mine, wide) for name in first]),
           [cut._replace(before_rank=position * mine) for position in range(len(first))])
    yield (_stack(module, [Leaf("w2", wide, mine)]), [Cut(wide, mine, wide, mine, 0, copies)])


def _stack(module: Module, leaves: list[Leaf]) -> Module:
    """Return the matrices as a module that no rank cuts any further."""
    return module._replace(leaves=tuple(leaves), bias=bool(module.facts.get(BIASED)))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
