"""The sizes of a model: config fields and what the engine derives from them, as table rows say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any

from quantplan.tables.errors import CheckpointError, NotKnownError

Config = Mapping[str, Any]
Row = Mapping[str, Any]
NO_SIZES: Mapping[str, int | None] = {}


def model_sizes(
    rows: Sequence[Row], config: Config, root: Config, kinds: Collection[str] = (),
    each: Mapping[str, int | None] = NO_SIZES,
) -> dict[str, int]:
    """Return size name -> value for a layer of the given kinds; `each` are the layer's own.

    `config` holds the language model's fields, `root` is the whole config.json. Raises
    CheckpointError for a field that is missing or no positive integer.
    """
    chosen = {row["id"]: row for row in rows if row.get("at") in (None, *kinds)}
    work = _Work(chosen, config, root, each)
    found = {name: work.size(name) for name in chosen}
    return {name: value for name, value in found.items() if value is not None}


def nested(root: Config, path: Sequence[str]) -> Config:
    """Return the part of config.json that `path` leads to; CheckpointError where it is missing."""
    place = root
    for key in path:
        found = place.get(key)
        if not isinstance(found, Mapping):
            raise CheckpointError(f"config.json: {'.'.join(path)}", wanted="an object",
                                  found="nothing" if found is None else repr(found)[:60])
        place = found
    return place


class _Work:
    """Sizes worked out on demand, so that rows may stand in any order."""

    def __init__(
        self, rows: Mapping[str, Row], config: Config, root: Config,
        known: Mapping[str, int | None],
    ) -> None:
        self.rows, self.config, self.root = rows, config, root
        self.known = dict(known)

    def size(self, name: str) -> int | None:
        """Return the size, None where the config leaves it out."""
        if name not in self.known:
            self.known[name] = self._value(self.rows[name]) if name in self.rows else None
        return self.known[name]

    def _value(self, row: Row) -> int | None:
        if "each" in row:
            return None
        if "length" in row:
            return self._length(row["length"])
        for operation, work in OPERATIONS.items():
            if operation in row:
                terms = [self.size(t) if isinstance(t, str) else t for t in row[operation]]
                return None if None in terms else work(terms)
        return self._field(row)

    def _length(self, fields: Sequence[str]) -> int:
        named = next((name for name in fields if self.config.get(name) is not None), fields[0])
        found = self.config.get(named)
        if not isinstance(found, (list, tuple, str)) or not found:
            raise CheckpointError(f"config.json: {named}", wanted="one entry per layer",
                                  found="nothing" if found is None else repr(found)[:60])
        return len(found)

    def _field(self, row: Row) -> int | None:
        place = self._place(row)
        named = next((n for n in row["fields"] if place.get(n) is not None), None)
        if named is not None:
            value = place[named]
            if "says" in row:
                return _said(row, value)
            if "depth_of" in row:
                return self._depth(row, value)
            if row.get("same") and isinstance(value, list):
                value = _the_same(value, named)
            return _checked(len(value) if row.get("listed") and isinstance(value, list) else value,
                            named, row)
        default = self._default(row, null=any(name in place for name in row["fields"]))
        if "depth_of" in row and default is not None:
            return self._depth(row, default)
        if default is None and not row.get("optional"):
            return _checked(None, row["fields"][0], row)
        return default

    def _depth(self, row: Row, value: Any) -> int:
        """Return how many layers there are up to the deepest of the given indices."""
        given = value if isinstance(value, list) and value else [value]
        if len(given) > 1 and row.get("single"):
            raise NotKnownError(f"several layers of {row['fields'][0]}", wanted="one layer")
        if not all(type(index) is int for index in given):
            raise CheckpointError(f"config.json: {row['fields'][0]}", found=repr(value)[:60],
                                  wanted="the index of a layer, or a list of them")
        count = self.size(row["depth_of"]) or 0
        deepest: int = max(count + index + 1 if index < 0 else index + row.get("beyond", 0)
                           for index in given)
        return deepest

    def _place(self, row: Row) -> Config:
        """Return where the row's fields stand; nothing where a default stands in for all of it."""
        if "within" in row:
            found = self.config.get(row["within"])
            return found if isinstance(found, Mapping) else {}
        if "from" not in row:
            return self.config
        part = row["from"][0] if row["from"] else None
        absent = part is not None and (part not in self.root if "default" in row else bool(
            row.get("optional")) and self.root.get(part) is None)
        return {} if absent else nested(self.root, row["from"])

    def _default(self, row: Row, null: bool) -> int | None:
        """Return what stands in for an absent field; one that says null never takes a number where
        another size can stand in."""
        stand_in = self.size(row["default_size"]) if "default_size" in row else None
        number: int | None = row.get("default_by_type", {}).get(
            str(self.config.get("model_type")), row.get("default"))
        return stand_in if number is None or (null and stand_in is not None) else number


def _said(row: Row, value: Any) -> int:
    found: int | None = row["says"].get(value) if isinstance(value, str) else None
    if found is None:
        raise NotKnownError(f"config.json: {'.'.join((*row['from'], row['fields'][0]))} {value!r}",
                            wanted="one of " + ", ".join(row["says"]))
    return found


def _the_same(values: list[Any], field: str) -> Any:
    """Return the value that all layers have."""
    if not values or any(value != values[0] for value in values):
        raise NotKnownError(f"config.json: {field} that differs between layers",
                            wanted="the same number for every layer")
    return values[0]


def _checked(value: Any, field: str, row: Row) -> int:
    if row.get("flag") and isinstance(value, bool):
        return int(value)
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        raise NotKnownError(f"config.json: {field} of one number per layer", wanted="one number")
    least = 0 if row.get("optional") or row.get("zero") or "default" in row else 1
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        name = ".".join((*row.get("from", ()), field))
        raise CheckpointError(f"config.json: {name}", wanted="a positive integer",
                              found="nothing" if value is None else repr(value)[:60])
    return value


OPERATIONS: Mapping[str, Callable[[Sequence[Any]], int | None]] = {
    "product": prod,
    "sum": sum,
    "quotient": lambda terms: terms[0] // terms[1] if terms[1] else None,
    "rounded": lambda terms: -(-terms[0] // terms[1]) * terms[1],
}
"""What a size row can do with other sizes; a term that is absent leaves the size absent."""
