"""The schema language of the tables, and the check that a YAML document follows it.

A document is a mapping of fields. A field has a type, a sentence of documentation (shown in
tables/README.md) and, for lists and maps, what they hold. Unknown keys, missing keys, wrong
types and unquoted versions are errors that name the file, the row and the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union

from quantplan.tables.errors import TableError
from quantplan.tables.record import NamedTuple

Row = Mapping[str, "Field"]


class Field(NamedTuple):
    """One field: `type` is text, int, number, flag, scalar, any, list, map or row."""

    type: str
    doc: str
    required: bool = True
    of: Union[Field, Row, None] = None
    choices: tuple[str, ...] = ()


def check(value: Any, row: Row, where: str) -> None:
    """Check a whole document against its row; raise TableError for the first violation."""
    for problem in problems(value, row, where):
        raise problem


def problems(value: Any, row: Row, where: str) -> Iterator[TableError]:
    """Yield a TableError for every place where `value` breaks `row`."""
    if not isinstance(value, dict):
        yield TableError(f"{where}: not a mapping", wanted="a mapping", found=_kind(value))
        return
    for key in value:
        if key not in row:
            yield TableError(f"{where}: unknown key {key!r}", wanted=f"one of {', '.join(row)}")
    for name, field in row.items():
        if name in value:
            yield from _field_problems(value[name], field, f"{where}: {name}")
        elif field.required:
            yield TableError(f"{where}: missing key {name!r}", wanted=field.doc)


def _field_problems(value: Any, field: Field, where: str) -> Iterator[TableError]:
    if field.type == "list":
        yield from _list_problems(value, field, where)
    elif field.type == "map":
        yield from _map_problems(value, field, where)
    elif field.type == "row":
        assert isinstance(field.of, Mapping)
        yield from problems(value, field.of, where)
    elif not _TYPES[field.type](value):
        yield _wrong_type(value, field, where)
    elif field.choices and value not in field.choices:
        yield TableError(f"{where}: unknown value", wanted="one of " + ", ".join(field.choices),
                         found=repr(value))


def _list_problems(value: Any, field: Field, where: str) -> Iterator[TableError]:
    if not isinstance(value, list):
        yield _wrong_type(value, field, where)
        return
    for position, item in enumerate(value):
        yield from _item_problems(item, field.of, f"{where}[{_row_name(item, position)}]")


def _map_problems(value: Any, field: Field, where: str) -> Iterator[TableError]:
    if not isinstance(value, dict):
        yield _wrong_type(value, field, where)
        return
    for key, item in value.items():
        if not isinstance(key, str):
            yield TableError(f"{where}: key {key!r} is not text", wanted=f'"{key}" in quotes',
                             found=_kind(key))
        yield from _item_problems(item, field.of, f"{where}[{key}]")


def _item_problems(item: Any, of: Field | Row | None, where: str) -> Iterator[TableError]:
    if isinstance(of, Field):
        yield from _field_problems(item, of, where)
    elif of is not None:
        yield from problems(item, of, where)


def _row_name(item: Any, position: int) -> str:
    return str(item["id"]) if isinstance(item, dict) and "id" in item else str(position)


def _wrong_type(value: Any, field: Field, where: str) -> TableError:
    hint = None
    if field.type == "text" and isinstance(value, (int, float)) and not isinstance(value, bool):
        hint = "Put versions and names in quotes: unquoted 0.30 loads as 0.3."
    return TableError(f"{where}: wrong type", wanted=field.type, found=_kind(value), hint=hint)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:80]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


_TYPES: dict[str, Callable[[Any], bool]] = {
    "text": lambda v: isinstance(v, str),
    "int": _is_int,
    "number": _is_number,
    "flag": lambda v: isinstance(v, bool),
    "scalar": lambda v: v is None or isinstance(v, (str, int, float, bool)),
    "any": lambda v: True,
}
