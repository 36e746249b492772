"""The schema of the memory tables: rules and constants of an engine by its version.

A row holds from version `since` on and below `before`, under its conditions; the first row of an id
that holds is the answer. Measured rows say on what, and by how much they were off there.
"""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

KINDS = ("exact", "modelled", "measured")
UNITS = ("bytes", "MiB", "GiB", "tokens", "sequences", "copies", "bytes per element")

CONDITION: Row = {
    "fact": Field("text", "a fact of the deployment, such as tp or gpu.capability"),
    "equals": Field("scalar", "the fact's value", required=False),
    "min": Field("number", "at least this", required=False),
    "below": Field("number", "less than this", required=False),
    "in": Field("list", "one of these", required=False, of=Field("scalar", "a value")),
    "without": Field("text", "a part that the fact's text does not have, in lower case",
                     required=False),
}

MEASURED_ON: Row = {
    "version": Field("text", "the engine's version, in quotes"),
    "gpu": Field("text", "the GPU's name"),
    "rows": Field("list", "ids of tests/cases/memory_truth.jsonl", of=Field("text", "an id")),
}

MEMORY_ROW: Row = {
    "id": Field("text", "what the row is about; several rows may share it"),
    "since": Field("text", "the first version that it holds for; absent: the oldest known",
                   required=False),
    "before": Field("text", "the first version that it does not hold for; absent: none",
                    required=False),
    "when": Field("list", "conditions that must all hold", required=False, of=CONDITION),
    "value": Field("any", "a number, a flag, a text, a list or a map"),
    "unit": Field("text", "the unit of a number", required=False, choices=UNITS),
    "plus_minus": Field("number", "the largest error on the rows it was measured on, or a guess "
                        "where the note says so; in the same unit", required=False),
    "kind": Field("text", "exact: read in the source; measured: from logs; modelled: from both",
                  choices=KINDS),
    "source": Field("text", "engine file:symbol, or the logs"),
    "measured_on": Field("list", "what a constant was read from", required=False, of=MEASURED_ON),
    "note": Field("text", "what a reader has to know", required=False),
}

MEMORY_DOCUMENT: Row = {
    "engine": Field("text", "the engine's name"),
    "oldest": Field("text", "the oldest version that the rows hold for, in quotes"),
    "newest": Field("text", "the newest one whose source was read, in quotes"),
    "rows": Field("list", "rules and constants", of=MEMORY_ROW),
}
