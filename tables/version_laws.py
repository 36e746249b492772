"""The laws that hold between the tables of an engine's versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.tables.load import read_table, table_names

Entries = Mapping[str, Mapping[str, Any]]
Law = Callable[[Entries], Iterator[str]]


def version_entries() -> dict[str, Mapping[str, Any]]:
    """Return every engine version's table by its name."""
    return {name: read_table(name) for name in table_names() if name.startswith("engines/")}


def names_are_of_their_tables(entries: Entries) -> Iterator[str]:
    """A table says the engine and the version that its path says."""
    for name, table in entries.items():
        said = f"engines/{table['engine']}/{table['version']}"
        if said != name:
            yield f"tables/{name}.yaml: says that it is {said}"


def one_default_each(entries: Entries) -> Iterator[str]:
    """One version of each engine is the one that is meant where none is named."""
    for engine in sorted({table["engine"] for table in entries.values()}):
        marked = [table["version"] for table in entries.values()
                  if table["engine"] == engine and table.get("default")]
        if len(marked) != 1:
            yield f"tables/engines/{engine}: {len(marked)} tables have default: true; wanted 1"


LAWS: tuple[Law, ...] = (names_are_of_their_tables, one_default_each)
