"""An engine version as changes to another one: each names a place, does one thing, and says why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from quantplan.tables.errors import TableError
from quantplan.tables.record import NamedTuple
from quantplan.tables.schema import Field, Row

OPERATION_FIELDS: Row = {
    "set": Field("any", "operation: the value that replaces the one there", required=False),
    "merge": Field("map", "operation: fields or keys that are added or replaced", required=False,
                   of=Field("any", "a value")),
    "append": Field("list", "operation: what is added at the end of the list", required=False,
                    of=Field("any", "a row or a value")),
    "insert": Field("list", "operation: what is added before or after an item of the list",
                    required=False, of=Field("any", "a row or a value")),
    "move": Field("list", "operation: items of the list that go before or after another, in the "
                  "order given", required=False, of=Field("scalar", "an item's name")),
    "remove": Field("list", "operation: items, fields or keys that go", required=False,
                    of=Field("scalar", "a name")),
}

CHANGE: Row = {
    "at": Field("text", "path of what changes: fields after dots; map keys, and list rows by id "
                "(by fact or position where rows have no id), in brackets"),
    **OPERATION_FIELDS,
    "before": Field("scalar", "insert, move and merge: in front of this item or key",
                    required=False),
    "after": Field("scalar", "insert, move and merge: behind this item or key", required=False),
    "because": Field("text", "what the engine does differently"),
    "source": Field("text", "file:symbol of the version that this file describes"),
}

Change = Mapping[str, Any]
STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[([^][]+)\]")


class Place(NamedTuple):
    """One change about to be made: to `holder[key]`, by `change`; `where` begins its errors."""

    holder: Any
    key: Any
    change: Change
    where: str

    @property
    def value(self) -> Any:
        """Return what is there now."""
        return self.holder[self.key]

    def error(self, what: str, **parts: str) -> TableError:
        """Return the error of this change."""
        return TableError(f"{self.where}: {what}", **parts)


def apply_changes(base: Any, changes: list[Change], where: str) -> Any:
    """Return a copy of table `base` with every change made, in order.

    Raises TableError for a path that leads nowhere, for a change with no or several operations and
    for one that changes nothing.
    """
    table = deepcopy(base)
    for position, change in enumerate(changes):
        place = find_place(table, change, f"{where}: changes[{position}] at {change['at']}")
        before = deepcopy(place.value)
        OPERATIONS[operation_of(place)](place)
        if place.value == before:
            raise place.error("changes nothing", hint="Drop it.")
    return table


def operation_of(place: Place) -> str:
    """Return the name of the change's one operation."""
    found = [name for name in OPERATION_FIELDS if name in place.change]
    if len(found) != 1:
        raise place.error("one operation is needed", wanted=f"one of {', '.join(OPERATION_FIELDS)}",
                          found=", ".join(found) or "none")
    return found[0]


def find_place(table: Any, change: Change, where: str) -> Place:
    """Return the place that the change's path leads to."""
    steps = list(path_steps(change["at"], where))
    place = Place({"table": table}, "table", change, where)
    for step in steps:
        value = place.value
        if isinstance(value, list):
            place = place._replace(holder=value, key=_position(value, step, place))
        elif isinstance(value, dict) and step in value:
            place = place._replace(holder=value, key=step)
        else:
            raise place.error(f"no {step!r} there", wanted=_names_in(value))
    return place


def path_steps(path: str, where: str) -> Iterator[str]:
    """Yield the steps of a path: families[mxfp8].kernels is families, mxfp8, kernels."""
    end = 0
    while end < len(path):
        step = STEP.match(path, end)
        if step is None or (end == 0 and path[0] in ".["):
            raise TableError(f"{where}: not a path", wanted="such as families[mxfp8].kernels")
        yield step[1] or step[2]
        end = step.end()


def item_name(item: Any) -> str | None:
    """Return what a list's item is called: a row by its id or fact, a value by itself."""
    if isinstance(item, dict):
        return item.get("id", item.get("fact"))
    return str(item)


def _position(items: list[Any], name: str, place: Place) -> int:
    found = [at for at, item in enumerate(items) if item_name(item) == name]
    if not found and name.isdigit() and int(name) < len(items):
        return int(name)
    if len(found) != 1:
        what = f"no {name!r} there" if not found else f"{len(found)} rows are called {name!r}"
        raise place.error(what, wanted=_names_in(items))
    return found[0]


def _names_in(value: Any) -> str:
    if isinstance(value, dict):
        return "one of " + ", ".join(map(str, value))
    if isinstance(value, list):
        names = (item_name(item) for item in value)
        return "one of " + ", ".join(name or str(at) for at, name in enumerate(names))
    return "a list or a map on the way"


def _set(place: Place) -> None:
    place.holder[place.key] = deepcopy(place.change["set"])


def _merge(place: Place) -> None:
    if not isinstance(place.value, dict):
        raise place.error("merge into what is no map")
    for key, value in place.change["merge"].items():
        if key in place.value and place.value[key] == value:
            raise place.error(f"{key} is already that", hint="Drop it.")
        place.value[key] = deepcopy(value)
    if "before" in place.change or "after" in place.change:
        keys = [key for key in place.value if key not in place.change["merge"]]
        at = _beside(place, keys)
        keys[at:at] = place.change["merge"]
        place.holder[place.key] = {key: place.value[key] for key in keys}


def _append(place: Place) -> None:
    items = _items(place)
    items += _new_items(place, "append")


def _insert(place: Place) -> None:
    new = _new_items(place, "insert")
    at = _beside(place, _items(place))
    _items(place)[at:at] = new


def _move(place: Place) -> None:
    items = _items(place)
    moved = [items[_position(items, str(name), place)] for name in place.change["move"]]
    items[:] = [item for item in items if item not in moved]
    at = _beside(place, items)
    items[at:at] = moved


def _remove(place: Place) -> None:
    for name in place.change["remove"]:
        if not isinstance(place.value, dict):
            del place.value[_position(_items(place), str(name), place)]
        elif name in place.value:
            del place.value[name]
        else:
            raise place.error(f"no {name!r} there", wanted=_names_in(place.value))


def _items(place: Place) -> list[Any]:
    if not isinstance(place.value, list):
        raise place.error(f"{operation_of(place)} where no list is")
    found: list[Any] = place.value
    return found


def _new_items(place: Place, operation: str) -> list[Any]:
    there = _items(place)
    for item in place.change[operation]:
        named = isinstance(item, dict) and "id" in item
        if item in there or (named and item["id"] in map(item_name, there)):
            raise place.error(f"{item_name(item)} is already there", hint="Change its row instead.")
    return deepcopy(place.change[operation])


def _beside(place: Place, items: list[Any]) -> int:
    sides = [side for side in ("before", "after") if side in place.change]
    if len(sides) != 1:
        raise place.error("one neighbour is needed", wanted="before or after")
    position = _position(items, str(place.change[sides[0]]), place)
    return position + (sides[0] == "after")


OPERATIONS: Mapping[str, Callable[[Place], None]] = {
    "set": _set, "merge": _merge, "append": _append, "insert": _insert, "move": _move,
    "remove": _remove,
}
"""Operation -> what it does to the value at its place."""
