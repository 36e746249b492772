"""The schema of --attention-config and of the flags of multimodal encoders."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

_SOURCE = Field("text", "engine file:symbol")

CONFIG: Row = {
    "source": _SOURCE,
    "options": Field("list", "its fields", of={
        "id": Field("text", "the field"),
        "values": Field("list", "the values that it takes; absent: others than these tables ask "
                        "about", required=False, of=Field("scalar", "a value")),
        "whole": Field("flag", "it takes a whole number", required=False),
        "named": Field("text", "what its text names", required=False,
                       choices=("backend", "kinds", "prefill")),
        "unknown": Field("text", "why nothing here answers with it", required=False),
    }),
    "aliases": Field("list", "backends that choose a kernel only: the engine chooses the backend",
                     of=Field("text", "a backend")),
    "kinds": Field("list", "groups of layers that backend_per_kind may name",
                   of=Field("text", "a kind")),
    "unknown_kind": Field("text", "the engine's words for any other; {kind} is filled in"),
}

ENCODER: Row = {
    "source": _SOURCE,
    "fields": Field("list", "keys of config.json that only multimodal models have: others do not "
                    "read the flags", of=Field("text", "a key")),
    "removed": Field("list", "names that the engine refuses in words of their own", of={
        "id": Field("text", "the name"), "says": Field("text", "its words")}),
    "chosen": Field("list", "backends that the flag may choose", of=Field("text", "a backend")),
    "dtypes": Field("list", "dtypes that encoder attention may have", of=Field("text", "a dtype")),
    "refused": Field("list", "the AssertionError for another backend; the first whose when "
                     "applies", of={
                         "when": Field("map", "facts", required=False,
                                       of=Field("any", "a value")),
                         "says": Field("text", "the words; {backend} is filled in")}),
}
