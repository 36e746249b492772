"""A table between two versions: the old one with some of the rows of the new one. What an answer
depends on is found by asking such tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from quantplan.tables.table_diff import Difference, place_beneath, rows_with_ids

ANSWERING = ("methods", "online_methods", "overrides", "rewrites", "schemes")
"""Lists whose rows answer by being there. The rows of other lists are only looked up by name, so a
table may hold them unused."""


def unit(difference: Difference) -> str:
    """Return the row that a difference is in, or its place where it is in none."""
    head, bracket, _ = difference.at.partition("]")
    return head + bracket


def hybrid(old: Any, new: Any, taken: Collection[str], at: str = "") -> Any:
    """Return `old` with the units `taken` as they are in `new`; rows that only one has stay where
    they are only looked up."""
    if at.endswith("]") and at in taken:
        return new
    if isinstance(old, dict) and isinstance(new, dict):
        return _map(old, new, taken, at)
    if rows_with_ids(old) and rows_with_ids(new):
        return _rows(old, new, taken, at)
    return new if at in taken else old


def _map(old: Mapping[str, Any], new: Mapping[str, Any], taken: Collection[str], at: str) -> Any:
    found = {}
    for key in [*old, *(key for key in new if key not in old)]:
        place = place_beneath(at, key)
        if key in old and key in new:
            found[key] = hybrid(old[key], new[key], taken, place)
        elif (key in new) == (place in taken):
            found[key] = new[key] if key in new else old[key]
    return found


def _rows(old: list[Any], new: list[Any], taken: Collection[str], at: str) -> list[Any]:
    before, behind = {row["id"]: row for row in old}, {row["id"]: row for row in new}
    first, second = (behind, before) if at in taken else (before, behind)
    found = []
    for name in merged_order(list(first), list(second)):
        chosen = place_beneath(at, name, rows=True) in taken
        row = behind.get(name) if chosen else before.get(name)
        if row is None and at not in ANSWERING:
            row = before.get(name, behind.get(name))
        found += [] if row is None else [row]
    return found


def merged_order(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return the names of `first`, with those that only `second` has behind whatever they follow
    there."""
    found = list(first)
    for position, name in enumerate(second):
        if name not in found:
            follows = second[position - 1] if position else None
            found.insert(found.index(follows) + 1 if follows in found else 0, name)
    return found


def deciding(units: Sequence[str], holds: Callable[[frozenset[str]], bool]) -> list[str]:
    """Return a smallest part of `units` for which `holds`, by halving (QuickXplain); nothing when
    it does not hold for all of them."""
    return _deciding(frozenset(), False, list(units), holds) if holds(frozenset(units)) else []


def _deciding(
    base: frozenset[str], grown: bool, units: list[str], holds: Callable[[frozenset[str]], bool]
) -> list[str]:
    if (grown and holds(base)) or not units:
        return []
    if len(units) == 1:
        return units
    left, right = units[: len(units) // 2], units[len(units) // 2:]
    needed = _deciding(base | set(left), True, right, holds)
    return [*_deciding(base | set(needed), bool(needed), left, holds), *needed]


def of_units(differences: Iterable[Difference], units: Collection[str]) -> tuple[Difference, ...]:
    """Return the differences that lie in some units; that a row is read elsewhere now is none."""
    return tuple(difference for difference in differences
                 if unit(difference) in units and not difference.at.endswith("source"))
