"""The schema of what an engine's source says of platforms other than CUDA. Nothing here was run on
such hardware."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

PLATFORMS = ("cpu", "rocm", "xpu", "npu")

RAISED: Row = {
    "type": Field("text", "the exception"),
    "message": Field("text", "the engine's words; {method} and {methods} are filled in"),
    "source": Field("text", "engine file:symbol"),
}

PLATFORM_GPU: Row = {
    "id": Field("text", "the architecture, as --gpu names it"),
    "names": Field("list", "products that the engine's source gives it", required=False,
                   of=Field("text", "a product")),
    "capability": Field("int", "what the engine reads as its capability, x 10"),
    "fp8_dtype": Field("text", "the torch dtype of FP8 there"),
    "source": Field("text", "engine file:symbol"),
}

REGISTERED: Row = {
    "id": Field("text", "the name"),
    "config_class": Field("text", "the class that it means there"),
    "min_capability": Field("int", "get_min_capability() there, as capability x 10",
                            required=False),
    "act_dtypes": Field("list", "get_supported_act_dtypes() there", required=False,
                        of=Field("text", "a dtype")),
    "gpus": Field("list", "the only GPUs of the platform where that holds", required=False,
                  of=Field("text", "an architecture")),
    "source": Field("text", "engine file:symbol"),
}

SUPPORTED: Row = {
    "methods": Field("list", "the names", of=Field("text", "a name")),
    "stage": Field("text", "when the others are refused"),
    **RAISED,
}

PLATFORM_LIST: Row = {
    "id": Field("text", "its name"),
    "layers": Field("text", "which layers choose from the list"),
    "methods": Field("list", "under which methods", of=Field("text", "a method")),
    "when": Field("list", "facts of the quantization config, or of one of its groups; any one line",
                  required=False, of=Field(
                      "map", "facts", of=Field("any", "a value, or a list of values"))),
    "candidates": Field("list", "in the engine's order; the first that fits runs", of={
        "id": Field("text", "the engine's class name"),
        "file": Field("text", "the engine file that defines it"),
        "asks": Field("list", "its refusals in the engine's words, besides those of other "
                      "platforms; values that it fills in are left out (...)",
                      required=False, of=Field("text", "a refusal")),
    }),
    "source": Field("text", "engine file:symbol"),
}

PLATFORM: Row = {
    "id": Field("text", "the value of --platform", choices=PLATFORMS),
    "source": Field("text", "engine file:symbol"),
    "assumes": Field("text", "what the rows take for granted, where the engine asks for it",
                     required=False),
    "registers": Field("list", "methods that are registered there and nowhere else, or otherwise",
                       required=False, of=REGISTERED),
    "drops": Field("map", "methods that are not registered there -> the only GPUs of the platform "
                   "where they are", required=False,
                   of=Field("list", "architectures", of=Field("text", "an architecture"))),
    "supported": Field("row", "the methods that the platform serves; absent: all that are "
                       "registered", required=False, of=SUPPORTED),
    "lost_overrides": Field("list", "names that the override hooks never answer there",
                            required=False, of=Field("text", "a name")),
    "own_overrides": Field("map", "names that they answer there only -> the checkpoint's own name",
                           required=False, of=Field("text", "a name")),
    "raising_overrides": Field("map", "--quantization values at which the hooks raise there",
                               required=False, of=RAISED),
    "capability": Field("int", "what stands for the capability, x 10, where no GPU is named; "
                        "-1: the engine finds none"),
    "gates": Field("flag", "whether a method's least capability is asked for"),
    "dtypes": Field("list", "supported dtypes; the first is what auto falls back to",
                    required=False, of=Field("text", "a dtype")),
    "fp8_dtype": Field("text", "the torch dtype of FP8, where no GPU decides it", required=False),
    "gpus": Field("list", "architectures that the engine tells apart", required=False,
                  of=PLATFORM_GPU),
    "kv_dtypes": Field("map", "--kv-cache-dtype -> the torch dtype of the cache; fp8: that of FP8",
                       required=False, of=Field("text", "a dtype")),
    "kv_refused": Field("map", "--kv-cache-dtype values that end the start", required=False,
                        of=RAISED),
    "kv_source": Field("text", "engine file:symbol", required=False),
    "attention": Field("list", "attention backends of layers without latent attention, in the "
                       "engine's order", of={
                           "id": Field("text", "its name"),
                           "if": Field("text", "when it is asked, where not always",
                                       required=False),
                           "kv_cache_dtypes": Field("list", "--kv-cache-dtype values that it "
                                                    "names", required=False,
                                                    of=Field("text", "a dtype")),
                           "source": Field("text", "engine file:symbol"),
                       }),
    "lists": Field("list", "what linear layers choose from, as far as it is known",
                   of=PLATFORM_LIST),
    "rules": Field("list", "what else the source says", of={
        "about": Field("text", "the subject", choices=("methods", "dtype", "fp8", "kv cache",
                                                      "attention", "layers")),
        "says": Field("text", "the rule, in a sentence"),
        "source": Field("text", "engine file:symbol"),
    }),
}

PLATFORM_ROWS = Field("list", "platforms other than CUDA, read from the source and checked against "
                      "no hardware", of=PLATFORM)
