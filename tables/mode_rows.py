"""The schema of modes, and their loading keyed by id."""

from __future__ import annotations

from collections.abc import Mapping
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
}


@cache
def modes() -> Mapping[str, Mapping[str, Any]]:
    """Return mode id -> row."""
    return {row["id"]: row for row in read_table("modes/modes")["modes"]}
