"""Which table under families/ holds an architecture or a skeleton: only that one is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from zlib import crc32

from quantplan.tables.load import fresh_compiled, part_names, read_table, sources_crc32

NAME = "family-index"
"""The compiled form of the index; no YAML has this name."""


@cache
def family_index() -> Mapping[str, Mapping[str, str]]:
    """Return "architectures" and "skeletons", name -> table, "own", the architectures of one
    engine's own families as `own_name` spells them -> table, and "model_types", those of configs
    that name no architecture -> architecture."""
    found: Mapping[str, Mapping[str, str]] | None = fresh_compiled(NAME, index_crc32())
    return found if found is not None else made_index()


def index_crc32() -> int:
    """Return the CRC-32 over everything that the index is made from."""
    names = part_names("families")
    return crc32(repr([(name, sources_crc32(name)) for name in names]).encode())


def made_index() -> dict[str, dict[str, str]]:
    """Return the index as the tables have it now."""
    every = [*table_rows("families")]
    families = [(table, row) for table, row in every if "engine" not in row]
    return {"architectures": {a: table for table, row in families for a in row["architectures"]},
            "own": {own_name(row["engine"], a): table for table, row in every if "engine" in row
                    for a in row["architectures"]},
            "skeletons": {row["id"]: table for table, row in table_rows("skeletons")},
            "model_types": {t: a for _, row in families
                            for t, a in row.get("model_types", {}).items()}}


def own_name(engine: str | None, architecture: str) -> str:
    """Return the name of an architecture in the engine's own families."""
    return f"{engine} {architecture}"


def table_rows(field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each row of a field of every family table, with the table's name."""
    for name in part_names("families"):
        yield from ((name, row) for row in read_table(name).get(field, ()))
