"""The schema of a version's routed experts: backend lists, experts classes and their words."""

from __future__ import annotations

from quantplan.tables.requirement_rows import REQUIREMENTS
from quantplan.tables.schema import Field, Row

_WHEN = Field("map", "facts that must have these values for the row to apply",
              of=Field("any", "a value, or a list of values"))
_BACKENDS = Field("list", "backends", of=Field("text", "a backend id"))
_KEYS = Field("list", "quantization keys", of=Field("text", "an id of quant_keys"))

BACKEND: Row = {
    "id": Field("text", "member of the engine's backend enum"),
    "value": Field("text", "what the engine prints of it; absent: the id", required=False),
    "classes": Field("list", "experts classes that it tries, in order",
                     of=Field("text", "an experts class")),
    "act": Field("text", "activation key that it is asked with; absent: the layer's own",
                 required=False),
    "act_when": Field("row", "another activation key on some facts", required=False,
                      of={"when": _WHEN, "act": Field("text", "the key there")}),
    "auto": Field("flag", "false: only --moe-backend reaches it", required=False),
    "rounds": Field("row", "what it rounds the experts' sizes up to", required=False, of={
        "hidden": Field("int", "multiple", required=False),
        "intermediate": Field("int", "multiple", required=False),
    }),
    "checks": Field("list", "the only checks of its classes that the engine makes; absent: all",
                    required=False, of=Field("text", "an id of experts_checks")),
    "refused": Field("text", "what --moe-backend raises where requires fails; absent: the list's "
                     "own words", required=False),
    "requires": REQUIREMENTS,
}

MOVE: Row = {
    "when": _WHEN,
    "first": Field("text", "this backend goes to the front", required=False),
    "last": Field("text", "this backend goes to the end", required=False),
    "move": Field("text", "this backend goes behind another", required=False),
    "after": Field("text", "that other one", required=False),
    "because": Field("text", "the reason"),
}

SWITCH: Row = {
    "variables": Field("list", "environment variables; any of them given, to any value, acts",
                       of=Field("text", "an id of environment")),
    "pins": Field("text", "all of them true: only this backend", required=False),
    "first": Field("text", "all of them true: this backend first", required=False),
    "removes": Field("list", "otherwise: these backends go", of=Field("text", "a backend id")),
    "unset": Field("list", "what goes where none of the variables is given", required=False, of={
        "when": _WHEN,
        "removes": Field("list", "these backends go", of=Field("text", "a backend id")),
        "because": Field("text", "the reason"),
    }),
}

EXPERTS_LIST: Row = {
    "id": Field("text", "short name"),
    "like": Field("text", "takes what is not said here from the list of this id", required=False),
    "texts": Field("row", "the engine's words; {backend}, {reason}, {flag}, {known}, "
                   "{candidates}, {reasons} and facts are filled in", of={
                       "unsupported": Field("text", "a backend that was asked for, or pinned, "
                                            "cannot serve"),
                       "unknown": Field("text", "--moe-backend names none of the list",
                                        required=False),
                       "none": Field("text", "no backend of the list can serve"),
                       "reason": Field("text", "one rejected class within {reasons}",
                                       required=False),
                   }),
    "lenient": Field("flag", "whether the method goes on without a class; it also says itself what "
                     "it computes", required=False),
    "none_type": Field("text", "exception type of none; absent: NotImplementedError",
                       required=False),
    "unsupported_type": Field("text", "exception type of unsupported; absent: ValueError",
                              required=False),
    "backends": Field("list", "backends in the order in which they are tried", required=False,
                      of=BACKEND),
    "auto": Field("list", "the backends that are tried without --moe-backend, in order; absent: "
                  "all whose auto is not false", required=False,
                  of=Field("text", "a backend id")),
    "humming_first": Field("flag", "whether the table's promotion reorders it", required=False),
    "by_activation": Field("flag", "whether only backends of the asked activations stay, then "
                           "those of 16-bit ones", required=False),
    "order": Field("list", "what moves on some facts, in order", required=False, of=MOVE),
    "switches": Field("list", "environment variables that pin or remove backends",
                      required=False, of=SWITCH),
    "flags": Field("map", "--moe-backend value -> backends that it asks for; absent: the flag is "
                   "not read", required=False, of=_BACKENDS),
    "flags_when": Field("list", "what a --moe-backend value asks for on some facts",
                        required=False, of={
                            "flag": Field("text", "the value"),
                            "when": _WHEN,
                            "backends": _BACKENDS,
                        }),
    "flags_whole": Field("list", "--moe-backend values all of whose backends stay where no "
                         "activations are asked for", required=False, of=Field("text", "a value")),
    "flags_batched": Field("list", "--moe-backend values that ask for the batched activation "
                           "format", required=False, of=Field("text", "a value")),
    "flags_ignored": Field("list", "--moe-backend values that it takes for auto", required=False,
                           of=Field("text", "a value")),
    "source": Field("text", "engine file:symbol"),
}

CHECK_FIELDS = ("before", "device", "gated", "activation", "scheme", "parallel", "routing",
                "router_dtype", "shape", "after")
"""Checks that hold requirement rows; hash routing, format and batch invariance follow from other
fields of a class."""

EXPERTS_CLASS: Row = {
    "id": Field("text", "the engine's class name"),
    "like": Field("text", "takes what is not said here from the row of this class",
                  required=False),
    "file": Field("text", "the engine file that defines it", required=False),
    "platform": Field("text", "the platform it is for, where that is not cuda", required=False,
                      choices=("rocm", "xpu", "cpu")),
    "parts": Field("list", "the classes between which it chooses at run time: it asks what both "
                   "ask", required=False, of=Field("text", "an experts class")),
    "monolithic": Field("flag", "whether it also routes: it takes no hash routing",
                        required=False),
    "activation_format": Field("text", "absent: standard", required=False,
                    choices=("standard", "batched_experts")),
    "ungated": Field("flag", "whether it takes activations without a gate", required=False),
    "batch_invariant": Field("flag", "whether it runs under VLLM_BATCH_INVARIANT",
                             required=False),
    "activations": Field("text", "the activation set that it takes", required=False),
    "weight_only": Field("flag", "whether it leaves activations in 16 bits whatever was asked",
                         required=False),
    "own_activations": Field("flag", "whether it works out its activation type from the layer and "
                             "the environment, not from what was asked", required=False),
    "joined": Field("text", "its words on all that fails of after, joined: {reasons} is filled in; "
                    "absent: the first one's own words", required=False),
    "mode": Field("text", "what it computes, where experts_modes does not say", required=False),
    "mode_when": Field("list", "what it computes on some facts instead", required=False, of={
        "when": _WHEN,
        "mode": Field("text", "a mode"),
    }),
    **dict.fromkeys(CHECK_FIELDS, REQUIREMENTS),
}

_SOURCE = Field("text", "engine file:symbol")

MOE_FIELDS: Row = {
    "moe_backends": Field("list", "--moe-backend choices", of=Field("text", "a value")),
    "moe_backends_source": _SOURCE,
    "mega_moe": Field("row", "--moe-backend values whose kernels also exchange tokens between "
                      "ranks", of={
                          "native": Field("list", "values for which the architectures build a "
                                          "module of their own in the place of routed experts",
                                          of=Field("text", "a value")),
                          "passthrough": Field("list", "values that do without the engine's own "
                                               "exchange", of=Field("text", "a value")),
                          "only": Field("list", "values that other architectures refuse",
                                        of=Field("text", "a value")),
                          "architectures": Field("list", "the architectures",
                                                 of=Field("text", "a class name")),
                          "refused": Field("text", "the words of that; {flag}, {architectures} and "
                                           "{model} are filled in"),
                          "source": _SOURCE,
                      }),
    "expert_counts": Field("row", "how the engine counts a model's experts for "
                           "--enable-expert-parallel", of={
                               "fields": Field("list", "fields of config.json, the first that is "
                                               "there counts", of=Field("text", "a field")),
                               "unseen": Field("list", "families whose experts stand in no such "
                                               "field", of=Field("text", "a family")),
                               "source": _SOURCE,
                           }),
    "experts_checks": Field("list", "what is asked of every experts class, in order", of={
        "id": Field("text", "short name"),
        "symbol": Field("text", "the class's own method that answers", required=False),
        "says": Field("text", "the engine's words on failure; {fact} is filled in"),
    }),
    "experts_checks_source": _SOURCE,
    "routing_methods": Field("map", "routing method -> the number that the engine prints",
                             of=Field("int", "a number")),
    "routing_methods_source": _SOURCE,
    "quant_keys": Field("map", "quantization key -> what the engine prints; {fact} is filled in",
                        of=Field("text", "a text")),
    "quant_keys_source": _SOURCE,
    "activation_sets": Field("list", "activations that several classes take", of={
        "id": Field("text", "short name"),
        "activations": Field("list", "values of MoEActivation", of=Field("text", "a value")),
        "source": _SOURCE,
    }),
    "experts_lists": Field("list", "backend lists of quantization methods", of=EXPERTS_LIST),
    "experts_classes": Field("list", "experts classes and what they ask", of=EXPERTS_CLASS),
    "ct_experts": Field("list", "compressed-tensors method classes of experts, in order", of={
        "id": Field("text", "the engine's class name"),
        "when": Field("list", "facts of a config group that it fits; any one line", of=Field(
            "map", "facts", of=Field("any", "a value, or a list of values"))),
    }),
    "ct_experts_source": _SOURCE,
    "quark_experts": Field("list", "Quark's method classes of experts, in order", of={
        "id": Field("text", "short name"),
        "method": Field("text", "the engine's class name"),
        "two_steps": Field("flag", "whether it is for configs of two steps", required=False),
        "scheme": Field("text", "the row of quark_schemes that must fit", required=False),
        "when": Field("list", "facts of the config; any one line must hold", required=False,
                      of=Field("map", "facts", of=Field("any", "a value, or a list of values"))),
        "list": Field("text", "the backend list that it walks", required=False),
        "weight": Field("text", "its weights' quantization key", required=False),
        "act": Field("text", "its activations' quantization key", required=False),
        "first_class": Field("flag", "whether it takes the first class of the chosen backend, "
                             "whichever passed", required=False),
        "weight_only": Field("text", "why its activations stay in 16 bits though it asks with a "
                             "key for them", required=False),
        "raises": Field("row", "what it refuses with instead", required=False, of={
            "type": Field("text", "exception type"),
            "message": Field("text", "the engine's words; {fact} is filled in"),
        }),
    }),
    "quark_mx_keys": Field("map", "Quark's MX activations -> their quantization key",
                           of=Field("text", "an id of quant_keys")),
    "quark_experts_source": _SOURCE,
    "experts_modes": Field("list", "what experts compute; the first row that holds both keys", of={
        "weights": _KEYS,
        "act": _KEYS,
        "when": Field("map", "facts", required=False, of=Field("any", "a value or values")),
        "mode": Field("text", "the mode; {fact} is filled in"),
    }),
}
"""Fields of an engine table."""
