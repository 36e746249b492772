"""The schema of the grid: what the generated questions of a verification are drawn from."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

_VALUES = Field("list", "what is drawn from; texts may hold {placeholders}",
                of=Field("any", "a value"))

FIELD: Row = {
    "at": Field("text", "path of the field in the quantization config, with dots; behind options. "
                "and side_files. in those"),
    "values": _VALUES,
    "add": Field("flag", "whether a field that is not there may be added", required=False),
}

CHOICE: Row = {
    "id": Field("text", "the library, variable or option of `explain`"),
    "values": _VALUES,
}

KIND: Row = {
    "id": Field("text", "the kind's name in the summary"),
    "weight": Field("int", "how often it is drawn, against the other kinds' weights"),
    "config": Field("any", "quantization_config to start from; absent: none", required=False),
    "side_files": Field("map", "other JSON files of the folder", required=False,
                        of=Field("any", "a file's content")),
    "options": Field("map", "options of `explain` that belong to the kind", required=False,
                     of=Field("any", "a value")),
    "stored": Field("map", "tensor -> dtype of a quantized module in the headers, for methods that "
                    "read them; absent: no headers", required=False, of=Field("text", "a dtype")),
    "vary": Field("list", "fields that are drawn", of=FIELD),
}

GRID_DOCUMENT: Row = {
    "engine": Field("text", "the engine's name"),
    "shares": Field("row", "another engine's grid, whose values, fields, models and kinds this one "
                    "has too", required=False, of={
                        "of": Field("text", "the engine"),
                        "kinds_not": Field("list", "its kinds that this one leaves out",
                                           of=Field("text", "a kind")),
                    }),
    "capabilities": Field("list", "capability x 10", of=Field("int", "a capability")),
    "drawn_machines": Field("int", "machines per capability next to the plain one"),
    "libraries": Field("list", "presence of libraries", of=CHOICE),
    "variables": Field("list", "environment variables", of=CHOICE),
    "options": Field("list", "options of `explain`; the first value is the usual one",
                     of=CHOICE),
    "odd_values": Field("list", "what any field of a quantization config may turn into",
                        of=Field("any", "a value")),
    "model_fields": Field("list", "fields of the model's config that are drawn", of=FIELD),
    "models": Field("list", "small models of families without a bundled one", of={
        "id": Field("text", "a name"),
        "config": Field("any", "config.json, with few layers"),
    }),
    "kinds": Field("list", "quantization methods", of=KIND),
}
