"""What differs between the tables of two versions, row by row, and which changes say why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.tables.load import chain_names, read_table
from quantplan.tables.overlay import item_name, path_steps
from quantplan.tables.record import NamedTuple

IDENTITY = ("engine", "version", "default", "extends", "released", "wheel", "covers", "changes")
"""Fields that say which version a table is of, not what it does."""
PLAIN_KEY = re.compile(r"[A-Za-z_]\w*")


class Reason(NamedTuple):
    """Why a row is as it is: what the file of `version` says of its change."""

    version: str
    because: str
    source: str


class Difference(NamedTuple):
    """One row, field or item that differs: `kind` is added, removed, changed or reordered; `item`
    names a list's item, `at` its list. `old` or `new` is None where there is none."""

    at: str
    kind: str
    old: Any
    new: Any
    item: str | None = None
    reasons: tuple[Reason, ...] = ()


def table_differences(engine: str, old: str, new: str) -> list[Difference]:
    """Return what differs between two versions that have a table, in the order of the tables."""
    history = list(_history(engine, old, new))
    tables = [read_table(f"engines/{engine}/{version}") for version in (old, new)]
    return [difference._replace(reasons=_reasons(difference, history))
            for difference in differences(*tables)]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield every difference between two whole tables."""
    yield from _of_maps(_content(old), _content(new), "")


def _content(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in IDENTITY}


def _of_values(old: Any, new: Any, at: str) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _of_maps(old, new, at)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _of_lists(old, new, at)
    elif old != new:
        yield Difference(at, "changed", old, new)


def _of_maps(
    old: Mapping[str, Any], new: Mapping[str, Any], at: str, rows: bool = False
) -> Iterator[Difference]:
    for key in [*old, *(key for key in new if key not in old)]:
        place = place_beneath(at, key, rows)
        if key not in new:
            yield Difference(place, "removed", old[key], None)
        elif key not in old:
            yield Difference(place, "added", None, new[key])
        else:
            yield from _of_values(old[key], new[key], place)


def _of_lists(old: list[Any], new: list[Any], at: str) -> Iterator[Difference]:
    if rows_with_ids(old) and rows_with_ids(new):
        before, behind = {row["id"]: row for row in old}, {row["id"]: row for row in new}
        yield from _of_maps(before, behind, at, rows=True)
        kept = [[name for name in names if name in other]
                for names, other in ((before, behind), (behind, before))]
    else:
        yield from (Difference(at, "removed", item, None, item_name(item))
                    for item in old if item not in new)
        yield from (Difference(at, "added", None, item, item_name(item))
                    for item in new if item not in old)
        kept = [[item for item in items if item in other]
                for items, other in ((old, new), (new, old))]
    if kept[0] != kept[1]:
        yield Difference(at, "reordered", kept[0], kept[1])


def place_beneath(at: str, key: str, rows: bool = False) -> str:
    """Return the place of a key of the map at `at`, or with `rows` of the row that it names."""
    if rows or not PLAIN_KEY.fullmatch(key):
        return f"{at}[{key}]"
    return f"{at}.{key}" if at else key


def rows_with_ids(value: Any) -> bool:
    """Return whether a value is a list of rows, each known by its own id."""
    if not isinstance(value, list) or not all(isinstance(x, dict) and "id" in x for x in value):
        return False
    return len({row["id"] for row in value}) == len(value)


def _history(engine: str, old: str, new: str) -> Iterator[tuple[list[tuple[str, ...]], Reason]]:
    """Yield the places and the reason of every change between two versions: what leads to the new
    one from where their files part, and what led to the old one."""
    chains = [chain_names(f"engines/{engine}/{version}") for version in (old, new)]
    common = set(chains[0]) & set(chains[1])
    for name in (name for chain in chains for name in chain if name not in common):
        table = read_table(name)
        for change in table.get("changes", ()):
            yield (list(_places(change)),
                   Reason(table["version"], change["because"], change["source"]))


def _places(change: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the steps of every row or item that a change touches."""
    steps = tuple(path_steps(change["at"], change["at"]))
    names = [str(name) for operation in ("append", "insert") if operation in change
             for name in map(item_name, change[operation])]
    names += [str(name) for operation in ("merge", "move", "remove")
              for name in change.get(operation, ())]
    yield from ((*steps, name) for name in names) if names else (steps,)


def _reasons(
    difference: Difference, history: list[tuple[list[tuple[str, ...]], Reason]]
) -> tuple[Reason, ...]:
    steps = tuple(path_steps(difference.at, difference.at))
    steps += (difference.item,) if difference.item else ()
    return tuple(reason for places, reason in history
                 if any(_touch(place, steps) for place in places))


def _touch(place: tuple[str, ...], steps: tuple[str, ...]) -> bool:
    """Return whether one lies in the other; a position stands for any row without an id."""
    return all(a == b or a.isdigit() for a, b in zip(place, steps, strict=False))
