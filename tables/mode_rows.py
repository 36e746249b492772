"""The schema of modes and implementations, and their loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from quantplan.tables.load import read_table
from quantplan.tables.schema import Field, Row

MODE_DOCUMENT: Row = {
    "modes": Field("list", "what a kernel computes", of={
        "id": Field("text", "the mode as JSON has it"),
        "short": Field("text", "the mode as the text output has it"),
        "words": Field("text", "weights and activations, in words"),
        "effect": Field("text", "what that buys"),
    }),
    "implementations": Field("list", "whose code a kernel is, by its name", of={
        "name": Field("text", "as people call it"),
        "holds": Field("list", "any of these says so, in the name's lower case; the first row wins",
                       of=Field("text", "a part of a kernel's name")),
        "means": Field("text", "what it is, in words"),
    }),
}


@cache
def modes() -> Mapping[str, Mapping[str, Any]]:
    """Return mode id -> row."""
    return {row["id"]: row for row in read_table("modes/modes")["modes"]}


@cache
def implementations() -> Sequence[Mapping[str, Any]]:
    """Return the rows that say whose code a kernel is, in order."""
    rows: Sequence[Mapping[str, Any]] = read_table("modes/modes")["implementations"]
    return rows
