"""The schema language: what it refuses, in which words; and the field reference made of it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from quantplan.tables.documents import SCHEMAS, document_row
from quantplan.tables.errors import TableError
from quantplan.tables.load import FOLDER, table_names
from quantplan.tables.schema import Field, Row, check, problems

README = Path(FOLDER) / "README.md"

ROW: Row = {
    "id": Field("text", "a name"),
    "count": Field("int", "a count", required=False),
    "ratio": Field("number", "a ratio", required=False),
    "on": Field("flag", "a switch", required=False),
    "value": Field("scalar", "a value", required=False),
    "raw": Field("any", "anything", required=False),
    "kind": Field("text", "a kind", required=False, choices=("a", "b")),
    "parts": Field("list", "parts", required=False, of={"id": Field("text", "a name")}),
    "sizes": Field("list", "sizes", required=False, of=Field("int", "a size")),
    "notes": Field("map", "notes", required=False, of=Field("text", "a note")),
    "rows": Field("map", "rows", required=False, of={"n": Field("int", "a number")}),
    "inner": Field("row", "a row", required=False, of={"n": Field("int", "a number")}),
}

WRONG: list[tuple[Any, str]] = [
    ([], "t: not a mapping; wanted a mapping; found list []"),
    ({}, "t: missing key 'id'; wanted a name"),
    ({"id": "x", "new": 1},
     "t: unknown key 'new'; wanted one of id, count, ratio, on, value, raw, kind, parts, sizes, "
     "notes, rows, inner"),
    ({"id": 0.3}, "t: id: wrong type; wanted text; found float 0.3. Put versions and names in "
                  "quotes: unquoted 0.30 loads as 0.3."),
    ({"id": 12}, "t: id: wrong type; wanted text; found int 12. Put versions and names in quotes: "
                 "unquoted 0.30 loads as 0.3."),
    ({"id": True}, "t: id: wrong type; wanted text; found bool True"),
    ({"id": None}, "t: id: wrong type; wanted text; found NoneType None"),
    ({"id": "x", "count": True}, "t: count: wrong type; wanted int; found bool True"),
    ({"id": "x", "count": 1.0}, "t: count: wrong type; wanted int; found float 1.0"),
    ({"id": "x", "ratio": "1"}, "t: ratio: wrong type; wanted number; found str '1'"),
    ({"id": "x", "ratio": False}, "t: ratio: wrong type; wanted number; found bool False"),
    ({"id": "x", "on": 1}, "t: on: wrong type; wanted flag; found int 1"),
    ({"id": "x", "value": [1]}, "t: value: wrong type; wanted scalar; found list [1]"),
    ({"id": "x", "kind": "c"}, "t: kind: unknown value; wanted one of a, b; found 'c'"),
    ({"id": "x", "parts": {}}, "t: parts: wrong type; wanted list; found dict {}"),
    ({"id": "x", "parts": [{"id": "p", "n": 1}]},
     "t: parts[p]: unknown key 'n'; wanted one of id"),
    ({"id": "x", "parts": [{}]}, "t: parts[0]: missing key 'id'; wanted a name"),
    ({"id": "x", "sizes": [1, "2"]}, "t: sizes[1]: wrong type; wanted int; found str '2'"),
    ({"id": "x", "notes": []}, "t: notes: wrong type; wanted map; found list []"),
    ({"id": "x", "notes": {"a": 1}},
     "t: notes[a]: wrong type; wanted text; found int 1. Put versions and names in quotes: "
     "unquoted 0.30 loads as 0.3."),
    ({"id": "x", "notes": {1: "a"}}, 't: notes: key 1 is not text; wanted "1" in quotes; '
                                     "found int 1"),
    ({"id": "x", "rows": {"a": {}}}, "t: rows[a]: missing key 'n'; wanted a number"),
    ({"id": "x", "inner": 3}, "t: inner: not a mapping; wanted a mapping; found int 3"),
]


@pytest.mark.parametrize("value, line", WRONG)
def test_a_violation_names_place_wanted_and_found(value: Any, line: str) -> None:
    assert [str(problem) for problem in problems(value, ROW, "t")] == [line]
    with pytest.raises(TableError) as raised:
        check(value, ROW, "t")
    assert str(raised.value) == line


def test_every_violation_is_found_not_only_the_first() -> None:
    found = problems({"count": "1", "new": 1, "sizes": ["1", "2"]}, ROW, "t")
    assert [str(problem).split(";")[0] for problem in found] == [
        "t: unknown key 'new'", "t: missing key 'id'", "t: count: wrong type",
        "t: sizes[0]: wrong type", "t: sizes[1]: wrong type"]


def test_a_long_value_is_cut_in_the_message() -> None:
    line = str(next(problems({"id": ["x" * 500]}, ROW, "t")))
    assert len(line) < 130


@pytest.mark.parametrize("value", [
    {"id": "x"}, {"id": "", "count": 0, "ratio": 0.5, "on": False, "value": None},
    {"id": "x", "ratio": 3, "value": "s", "raw": [{"a": None}], "kind": "b"},
    {"id": "x", "parts": [], "sizes": [], "notes": {}, "rows": {"a": {"n": 1}}, "inner": {"n": 2}},
])
def test_what_follows_the_schema_passes(value: Any) -> None:
    assert list(problems(value, ROW, "t")) == []


@pytest.mark.parametrize("name", table_names())
def test_every_table_has_a_schema(name: str) -> None:
    assert document_row(name)


def test_a_folder_without_a_schema_is_named() -> None:
    with pytest.raises(TableError) as raised:
        document_row("colours/red")
    assert str(raised.value) == ("tables/colours/red.yaml: no schema for folder 'colours'. "
                                 "Add one to tables/documents.py.")


# The field reference.


def reference(folder: str) -> list[str]:
    """Return the lines of tables/README.md for the documents of `folder`: one per field."""
    module, name = SCHEMAS[folder]
    row: Row = getattr(import_module(f"quantplan.tables.{module}"), name)
    return list(_lines(row, "", []))


def _lines(row: Row, prefix: str, seen: list[tuple[Row, str]]) -> Iterator[str]:
    for name, field in row.items():
        path = f"{prefix}{name}"
        inner, marks = _inner(field)
        known = next((where for other, where in seen if other is inner), None)
        yield f"| `{path}{marks}` | {_type(field, known)} | {field.doc} |"
        if inner is not None and known is None:
            seen.append((inner, path + marks))
            yield from _lines(inner, f"{path}{marks}.", seen)


def _inner(field: Field) -> tuple[Row | None, str]:
    """Return the row that a field holds, if any, and the brackets of its containers."""
    marks = {"list": "[]", "map": "[key]"}.get(field.type, "")
    if isinstance(field.of, Field):
        inner, more = _inner(field.of)
        return inner, marks + more
    return field.of, marks


def _type(field: Field, known: str | None) -> str:
    words = _words(field)
    if known:
        words += f" as `{known}`"
    if field.choices:
        words += ": " + ", ".join(field.choices)
    return words if field.required else f"{words}, optional"


def _words(field: Field) -> str:
    if field.type not in ("list", "map"):
        return field.type
    held = _words(field.of) if isinstance(field.of, Field) else "row"
    return f"{field.type} of {held}"


def section(folder: str) -> list[str]:
    """Return the field lines of the README's section about `folder`."""
    parts = README.read_text(encoding="utf-8").split("\n## ")
    text = next((part for part in parts if part.startswith(f"`{folder}/")), "")
    return [line for line in text.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("folder", sorted(SCHEMAS))
def test_the_readme_has_every_field_with_its_type_and_sentence(folder: str) -> None:
    """A new field is copied from this test's message into tables/README.md."""
    wanted, found = reference(folder), section(folder)
    missing = [line for line in wanted if line not in found]
    assert missing == []
    assert [line for line in found if line not in wanted] == []
    assert found == wanted
