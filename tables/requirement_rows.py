"""The schema of a requirement: a fact, one predicate, the engine's words on failure."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

PREDICATE_FIELDS: Row = {
    "min": Field("number", "the fact must be at least this", required=False),
    "max": Field("number", "the fact must be at most this", required=False),
    "equals": Field("scalar", "the fact must be this", required=False),
    "not_equals": Field("scalar", "the fact must not be this", required=False),
    "in": Field("list", "the fact must be one of these", required=False,
                of=Field("scalar", "an allowed value")),
    "not_in": Field("list", "the fact must be none of these", required=False,
                    of=Field("scalar", "a forbidden value")),
    "multiple_of": Field("int", "the fact must be a multiple of this", required=False),
    "divides": Field("text", "the fact must divide the named fact", required=False),
}

REQUIREMENT: Row = {
    "fact": Field("text", "the fact that is tested, such as gpu.capability or layer.k"),
    **PREDICATE_FIELDS,
    "when": Field("map", "facts that must have these values for the row to apply",
                  required=False, of=Field("any", "a value, or a list of values")),
    "says": Field("text", "the engine's own words on failure; {fact} is filled in",
                  required=False),
    "source": Field("text", "engine file:symbol, when not that of the kernel", required=False),
    "because": Field("text", "why the engine asks this", required=False),
    "plain": Field("text", "what failing means, in a sentence for people; {fact} is filled in",
                   required=False),
}

REQUIREMENTS = Field("list", "requirements, in the engine's order", required=False,
                     of=REQUIREMENT)
