"""The schema of what an engine version does with AutoRound checkpoints."""

from __future__ import annotations

from quantplan.tables.schema import Field

_NAMES = Field("text", "a name")

INC = Field("row", "AutoRound checkpoints", of={
    "source": Field("text", "engine file:symbol"),
    "bits": Field("list", "weight bits", of=Field("int", "bits")),
    "data_types": Field("list", "data_type values", of=_NAMES),
    "data_type_aliases": Field("map", "data_type -> the one it stands for", of=_NAMES),
    "packings": Field("list", "packing_format values", of=_NAMES),
    "backends": Field("list", "backend values", of=_NAMES),
    "default_packing": Field("map", "data_type -> packing_format where none is given", of=_NAMES),
    "humming_bits": Field("list", "weight bits that Humming serves", of=Field("int", "bits")),
    "kinds": Field("map", "data_type -> what goes with it", of=Field("row", "one kind", of={
        "name": Field("text", "what error texts call it"),
        "bits": Field("list", "weight bits", of=Field("int", "bits")),
        "group": Field("scalar", "scalar, pair, or the one group size"),
        "bad_group": Field("text", "the error of another group size; {found} is filled in"),
        "symmetric": Field("flag", "weights must be symmetric"),
        "packings": Field("list", "packing_format values", of=_NAMES),
        "bad_packing": Field("text", "the error of another packing; {found} is filled in"),
        "backend": Field("scalar", "the one backend, or null for any"),
    })),
    "activations": Field("map", "data_type, or mxfp8 -> fields with one accepted value",
                         of=Field("row", "one kind", of={
                             "name": Field("text", "what error texts call it"),
                             "fields": Field("map", "field -> its value; group stands for the "
                                             "group size", of=Field("scalar", "a value")),
                         })),
})
