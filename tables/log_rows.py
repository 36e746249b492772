"""The schema of what start-up logs say, and its loading."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from quantplan.tables.load import read_table
from quantplan.tables.schema import Field, Row

OPTION = Field("text", "the option of `quantplan budget`")
LOG_DOCUMENT: Row = {
    "engine": Field("text", "whose log", choices=("vllm", "sglang")),
    "flags": Field("map", "argument as the log prints it -> option", of=OPTION),
    "resolved": Field("map", "value that the engine resolved and prints -> option, where the "
                      "arguments do not say it", of=OPTION),
    "lines": Field("list", "a kind of line; all of them are tried on every line", of={
        "id": Field("text", "what the line says"),
        "holds": Field("text", "text that every such line has: it is looked for first"),
        "pattern": Field("text", "regular expression; its named groups are the figures, in the "
                         "unit that the name ends with; args and config are key-value text"),
        "of": Field("text", "who prints it", choices=("run", "engine", "worker")),
        "starts": Field("flag", "a server that starts prints it first", required=False),
        "versions": Field("text", "versions of the engine whose lines look like this"),
        "source": Field("text", "the engine's file and symbol"),
    }),
}


@cache
def log_table(engine: str) -> Mapping[str, Any]:
    """Return what the start-up log of `engine` says, and which options its arguments are."""
    table: Mapping[str, Any] = read_table(f"logs/{engine}")
    return table
