"""The schema of what an engine version quantizes while a checkpoint loads."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

_KEY = Field("text", "the weight's quantization key, an id of online_keys", required=False)
_NAMES = Field("list", "which of them", required=False, of=Field("text", "a name"))

ONLINE: Row = {
    "online_methods": Field("list", "--quantization names that quantize while loading, the "
                            "shorthands of --quantization-config", of={
                                "id": Field("text", "the name"),
                                "linear": _KEY, "experts": _KEY,
                                "late": Field("flag", "no shorthand: it meets "
                                              "--quantization-config only when the config class "
                                              "is made", required=False),
                                "deferred": Field("flag", "a checkpoint method of this name goes "
                                                  "first", required=False),
                                "source": Field("text", "engine file:symbol"),
                            }),
    "online_keys": Field("list", "quantization keys that a spec may name", of={
        "id": Field("text", "an id of quant_keys"),
        "name": Field("text", "its name in --quantization-config", required=False),
        "linear": Field("text", "the method class of linear layers", required=False),
        "experts": Field("text", "the method class of experts", required=False),
        "passes": Field("flag", "layers keep the method that they have", required=False),
    }),
    "online_keys_source": Field("text", "engine file:symbol"),
    "requantization": Field("row", "layers that the checkpoint has quantized already", of={
        "experts": Field("text", "the error of experts; absent: they are quantized again",
                         required=False),
        "weights": Field("list", "what a method keeps as layer.weight, first fit", of={
            "methods": Field("list", "the linear methods", of=Field("text", "a class")),
            "schemes": _NAMES, "families": _NAMES,
            "weight": Field("text", "N x K, N x K/2, or no such parameter",
                            choices=("whole", "half", "none")),
            "dequantizes": Field("flag", "its method can give the 16-bit weights back",
                                 required=False),
        }),
        "source": Field("text", "engine file:symbol"),
    }),
    "moe_activations": Field("list", "methods of experts that read moe.activation of "
                             "--quantization-config", of={
                                 "list": Field("text", "an id of experts_lists"),
                                 "methods": _NAMES,
                                 "keys": Field("list", "the keys that they take", required=False,
                                               of=Field("text", "an id of quant_keys")),
                                 "plain": Field("text", "the error where activations are 16-bit",
                                                required=False),
                                 "unlisted": Field("text", "the error of another key; {asked} is "
                                                   "filled in", required=False),
                                 "other": Field("text", "the error of a key that is not the "
                                                "method's own; {own} too", required=False),
                                 "only": Field("row", "a key that one backend has",
                                               required=False, of={
                                                   "key": Field("text", "the key"),
                                                   "backend": Field("text", "the backend"),
                                                   "otherwise": Field("text", "the error of "
                                                                      "another one"),
                                               }),
                                 "source": Field("text", "engine file:symbol"),
                             }),
}
