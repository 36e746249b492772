"""The schema of levers: changes of an engine's flags that may gain room for KV cache."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

LEVER: Row = {
    "id": Field("text", "short name"),
    "engine": Field("text", "whose flag it is", choices=("vllm", "sglang")),
    "flag": Field("text", "as the user writes it"),
    "changes": Field("any", "fields of the question and their values"),
    "costs": Field("text", "what the user gives for it"),
    "source": Field("text", "the engine's own definition of the flag"),
    "kind": Field("text", "how this row is known", choices=("source",)),
}

LEVER_DOCUMENT: Row = {
    "formats": Field("list", "names for --as that are compared", of=Field("text", "a format")),
    "levers": Field("list", "in no order", of=LEVER),
}
