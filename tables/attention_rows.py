"""The schema of an engine table's attention and KV-cache parts."""

from __future__ import annotations

from quantplan.tables.attention_flag_rows import CONFIG, ENCODER
from quantplan.tables.requirement_rows import REQUIREMENT
from quantplan.tables.schema import Field, Row

_WHEN = Field("map", "facts that must have these values", required=False,
              of=Field("any", "a value, or a list of values"))
_NEEDS = Field("list", "requirements that must hold as well", required=False, of=REQUIREMENT)
_SOURCE = Field("text", "engine file:symbol", required=False)
_REQUIRES = Field("list", "requirements", required=False, of=REQUIREMENT)

_REFUSES = Field("list", "what its constructor raises after it was chosen", required=False,
                 of={**REQUIREMENT,
                     "type": Field("text", "exception type; absent: ValueError",
                                   required=False)})

BACKEND: Row = {
    "id": Field("text", "the engine's name"),
    "file": Field("text", "the engine file that defines it"),
    "symbol": Field("text", "its class"),
    "like": Field("text", "backend above whose rows hold where this one has none",
                  required=False),
    "supports": Field("list", "aspects that are not held against it", required=False,
                      of=Field("text", "an aspect")),
    "imports": Field("list", "what its file imports; where that fails nothing else is asked",
                     required=False, of=REQUIREMENT),
    "requires": _REQUIRES,
    "combination": Field("list", "requirements of which the first that fails is reported, after "
                         "the others", required=False, of=REQUIREMENT),
    "refuses": _REFUSES,
    "runs_on": Field("list", "devices that its kernels are compiled for, where selection asks for "
                     "less", required=False, of=REQUIREMENT),
    "pads_heads": Field("list", "query heads of a rank that its kernels have; others are padded",
                        required=False, of=Field("int", "heads")),
    "cache": Field("list", "KV cache dtypes that the layer changes for it", required=False, of={
        "from": Field("list", "the dtype before", of=Field("text", "a dtype")),
        "to": Field("text", "the dtype that the cache has"),
        "when": _WHEN,
        "source": Field("text", "engine file:symbol"),
    }),
    "no_prefill": Field("map", "facts with which it has no dense prefill; none: never has one",
                        required=False, of=Field("any", "a value")),
    "module": Field("text", "module class that the engine builds for it", required=False),
    "module_when": Field("list", "other classes; the first whose when applies", required=False,
                         of={"when": Field("map", "facts", of=Field("any", "a value")),
                             "module": Field("text", "the class")}),
}

ORDER: Row = {
    "list": Field("text", "which list"),
    "when": _WHEN,
    "needs": _NEEDS,
    "backends": Field("list", "names in order", of=Field("text", "a backend")),
    "aspects": Field("list", "aspects that are asked; absent: all, and combinations",
                     required=False, of=Field("text", "an aspect")),
}

PREFILL: Row = {
    "source": Field("text", "engine file:symbol"),
    "none_valid": Field("text", "the engine's words when none is valid"),
    "selected_invalid": Field("text", "its words when the one asked for is not"),
    "names": Field("list", "mla_prefill_backend values", of=Field("text", "a name")),
    "unknown": Field("text", "its words for any other"),
    "unregistered": Field("list", "values without a class", of=Field("text", "a name")),
    "unregistered_says": Field("text", "its words for these"),
    "order": Field("list", "priority lists; the first whose when applies", of={
        "when": _WHEN, "backends": Field("list", "ids in order", of=Field("text", "an id"))}),
    "backends": Field("list", "prefill backends", of={
        "id": Field("text", "the engine's class name"),
        "name": Field("text", "the name it is chosen by"),
        "file": Field("text", "the engine file that defines it"),
        "requires": _REQUIRES,
        "runs_on": Field("list", "devices that its kernels are compiled for", required=False,
                         of=REQUIREMENT),
    }),
}

_VERSION = Field("int", "a version of FlashAttention")

FLASH: Row = {
    "source": Field("text", "engine file:symbol"),
    "page": Field("int", "tokens of a page of the 256-head kernel"),
    "supported": Field("list", "what each version runs on",
                       of={"version": _VERSION, "needs": _NEEDS}),
    "supported_source": Field("text", "engine file:symbol"),
    "first": Field("list", "the device's version; the first whose when applies",
                   of={"version": _VERSION, "when": _WHEN}),
    "rewrites": Field("list", "changes of the version, in order", of={
        "from": Field("list", "versions that it changes", of=_VERSION),
        "to": _VERSION, "when": _WHEN, "needs": _NEEDS,
        "because": Field("text", "the reason"),
    }),
    "fp8_kv": Field("list", "versions that read an FP8 cache",
                    of={"version": _VERSION, "when": _WHEN}),
    "fp8_kv_source": Field("text", "engine file:symbol"),
    "head_mix": Field("row", "models whose layers have heads of several sizes", of={
        "architectures": Field("list", "their architectures", of=Field("text", "one")),
        "version": Field("int", "the version that all their layers get"),
        "max_head": Field("int", "the largest head that it serves"),
        "backends": Field("list", "--attention-backend values that leave it so",
                          of=Field("text", "a backend")),
        "fallback": Field("text", "the backend where that version does not run"),
        "per_layer": Field("map", "facts with which each layer keeps its own version",
                           of=Field("any", "a value")),
        "source": Field("text", "engine file:symbol"),
    }),
}

ATTENTION: Row = {
    "source": Field("text", "engine file:symbol"),
    "aspects": Field("list", "what every backend is asked, in the engine's order", of={
        "id": Field("text", "short name"),
        "fact": Field("text", "must be false for backends that do not support it",
                      required=False),
        "says": Field("text", "the engine's words"),
    }),
    "aspects_source": Field("text", "engine file:symbol"),
    "mm_prefix": Field("row", "models in whose layers image tokens attend to each other, besides "
                       "those whose config says so", of={
                           "model_types": Field("list", "model_type of config.json",
                                                of=Field("text", "a model_type")),
                           "source": Field("text", "engine file:symbol")}),
    "none_valid": Field("text", "the engine's words when no backend is valid; {fact} and "
                        "{reasons} are filled in"),
    "selected_invalid": Field("text", "its words when the backend asked for is not valid"),
    "names": Field("list", "--attention-backend values", of=Field("text", "a backend")),
    "names_source": Field("text", "engine file:symbol"),
    "unknown": Field("text", "the engine's words for any other"),
    "unregistered": Field("list", "values without a class", of=Field("text", "a backend")),
    "unregistered_says": Field("text", "its words for these"),
    "order": Field("list", "priority lists; the first of a list that applies", of=ORDER),
    "forced": Field("list", "--attention-backend in lists that do not validate it", of={
        "list": Field("text", "which list"),
        "named": Field("list", "values", of=Field("text", "a backend")),
        "backend": Field("text", "what they choose", required=False),
        "says": Field("text", "the ValueError that they raise instead", required=False),
        "source": Field("text", "engine file:symbol"),
    }),
    "modules": Field("list", "module classes that have a backend", of={
        "id": Field("text", "the engine's class name"),
        "list": Field("text", "the list it chooses from", required=False),
        "unequal": Field("text", "the list where its key and value heads differ in size",
                         required=False),
        "backend": Field("text", "the one backend it has", required=False),
        "mla": Field("flag", "its attention is latent", required=False),
        "sparse": Field("flag", "it attends to chosen tokens", required=False),
        "prefill": Field("flag", "it has an MLA prefill backend", required=False),
        "cache": Field("flag", "false: it has no KV cache", required=False),
        "early": Field("flag", "it looks for its backend before it is an attention layer: with "
                       "head size, dtype and cache dtype only", required=False),
        "loads_scales_as": Field("text", "the kind of layer that config classes take it for when "
                                 "they attach a KV-cache method; absent: none is attached",
                                 required=False, choices=("attention", "mla")),
        "state": Field("flag", "it keeps a recurrent state", required=False),
        "refuses": _REFUSES,
        "later": Field("list", "what is raised when the engine lays out its cache", required=False,
                       of=REQUIREMENT),
        "source": Field("text", "engine file:symbol"),
    }),
    "no_state_invariance": Field("text", "the RuntimeError of recurrent layers under "
                                 "VLLM_BATCH_INVARIANT"),
    "no_state_invariance_source": Field("text", "engine file:symbol"),
    "backends": Field("list", "backends and what they require", of=BACKEND),
    "prefill": Field("row", "prefill of MLA", of=PREFILL),
    "flash": Field("row", "FlashAttention's versions", of=FLASH),
    "config": Field("row", "--attention-config", of=CONFIG),
    "encoder": Field("row", "flags of multimodal encoders", of=ENCODER),
}

KV_CACHE: Row = {
    "source": Field("text", "engine file:symbol"),
    "dtypes": Field("list", "--kv-cache-dtype choices", of={
        "id": Field("text", "the dtype"),
        "quantized": Field("flag", "the engine counts it as quantized", required=False),
        "packed": Field("flag", "it has a backend of its own", required=False),
        "scales": Field("text", "computed: scales are made when tokens are stored",
                        required=False, choices=("computed",)),
    }),
    "quantized_source": Field("text", "engine file:symbol"),
    "packed": Field("row", "what a packed dtype changes", of={
        "boundary_layers": Field("int", "layers at each end that keep the model's dtype"),
        "flash_version": Field("int", "the version that FlashAttention is held to"),
        "source": Field("text", "engine file:symbol"),
        "unidentified": Field("row", "hybrids whose config does not say which layers attend", of={
            "families": Field("list", "families", of=Field("text", "a family's id")),
            "type": Field("text", "the engine's exception"),
            "says": Field("text", "its text"),
        }),
    }),
    "changes": Field("list", "the engine's own changes for a model", of={
        "architectures": Field("list", "of these models", of=Field("text", "an architecture")),
        "from": Field("text", "the dtype asked for"),
        "to": Field("text", "the dtype served"),
        "when": _WHEN,
        "because": Field("text", "the reason"),
        "source": Field("text", "engine file:symbol"),
    }),
    "mla_refuses": Field("row", "dtypes that MLA models are refused", of={
        "dtypes": Field("list", "the dtypes", of=Field("text", "a dtype")),
        "type": Field("text", "exception type"),
        "says": Field("text", "the engine's words"),
        "source": Field("text", "engine file:symbol"),
    }),
    "e5m2_says": Field("text", "its words for fp8_e5m2 where scales are loaded"),
    "e5m2_source": Field("text", "engine file:symbol"),
}
