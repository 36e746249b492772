"""The schema of attention in an SGLang version's table: what the server makes of its arguments."""

from __future__ import annotations

from quantplan.tables.requirement_rows import REQUIREMENTS
from quantplan.tables.schema import Field, Row

LINE = Field("map", "facts", of=Field("any", "a value, or a list of values"))
WHEN = Field("list", "facts at which it is made; any one line", required=False, of=LINE)
UNLESS = Field("map", "facts of which none may have such a value", required=False,
               of=Field("any", "a value, or a list of values"))
REFUSED = Field("row", "what ends the start", required=False, of={
    "type": Field("text", "the exception"),
    "message": Field("text", "the engine's words; {fact} is filled in"),
    "hint": Field("text", "what the user can do", required=False),
})

RULE: Row = {
    "id": Field("text", "its name"),
    "architectures": Field("list", "the model classes for which it is made; absent: all",
                           required=False, of=Field("text", "an architecture")),
    "when": WHEN,
    "unless": UNLESS,
    "needs": REQUIREMENTS,
    "walks": Field("text", "the list from which --attention-backend is chosen", required=False),
    "sets": Field("map", "argument -> its value from here on; {fact} is filled in",
                  required=False, of=Field("scalar", "a value")),
    "refuses": REFUSED,
    "unknown": Field("text", "what is not in the table where it is made", required=False),
    "because": Field("text", "why, in words for people", required=False),
    "source": Field("text", "engine file:symbol"),
}

BACKENDS: Row = {
    "id": Field("text", "the list's name"),
    "backends": Field("list", "in the engine's order; the first whose requirements pass", of={
        "backend": Field("text", "the name"),
        "requires": REQUIREMENTS,
    }),
    "source": Field("text", "engine file:symbol"),
}

NOTE: Row = {
    "id": Field("text", "the finding's name"),
    "severity": Field("text", "how bad it is", choices=("error", "warning", "info")),
    "stage": Field("text", "where the engine meets it"),
    "when": WHEN,
    "unless": UNLESS,
    "needs": REQUIREMENTS,
    "says": Field("text", "in words for people; {fact} is filled in"),
    "hint": Field("text", "what the user can do", required=False),
    "source": Field("text", "engine file:symbol"),
}

ATTENTION: Row = {
    "choices": Field("list", "what --attention-backend and its two siblings take",
                     of=Field("text", "a name")),
    "choices_source": Field("text", "engine file:symbol"),
    "encoder_choices": Field("list", "what --mm-attention-backend takes",
                             of=Field("text", "a name")),
    "encoder_choices_source": Field("text", "engine file:symbol"),
    "prefill_chunk": Field("int", "tokens that every page size has to divide: the smallest chunk "
                           "of a prefill"),
    "prefill_chunk_source": Field("text", "engine file:symbol"),
    "index_page": Field("int", "tokens of a page of sparse attention, times the config's "
                        "index_kpool"),
    "index_page_source": Field("text", "engine file:symbol"),
    "memory_mib": Field("int", "memory of a GPU of which only the capability is known"),
    "model_facts": Field("list", "facts of the model; true where any of its rows fits", of={
        "fact": Field("text", "the fact"),
        "architectures": Field("list", "model classes; absent: all", required=False,
                               of=Field("text", "an architecture")),
        "given": Field("list", "fields of the text config that are not null", required=False,
                       of=Field("text", "a field")),
        "holds": Field("map", "field of the text config -> a text that is in its list",
                       required=False, of=Field("text", "a text")),
        "quantization": Field("map", "field of the quantization config -> its value, in any case",
                              required=False, of=Field("text", "a value")),
        "source": Field("text", "engine file:symbol"),
    }),
    "lists": Field("list", "backends to choose from", of=BACKENDS),
    "rules": Field("list", "what is made of the arguments, in the engine's order", of=RULE),
    "notes": Field("list", "what the choice does later", of=NOTE),
    "states": Field("list", "classes of attention that hold a state and no KV cache", of={
        "module": Field("text", "the module class"),
        "when": Field("map", "facts of the model", of=Field("any", "a value")),
        "backend": Field("text", "the class of its backend"),
        "source": Field("text", "engine file:symbol"),
    }),
    "encoders": Field("map", "class of attention in encoders, which have no KV cache -> the list "
                      "from which its backend is chosen", of=Field("text", "a list")),
    "encoder_source": Field("text", "engine file:symbol"),
    "encoder_rules": Field("list", "what ends the start where such a layer is built", of=RULE),
}
