"""The schema of what an engine table says of the package humming."""

from __future__ import annotations

from quantplan.tables.schema import Field

KERNEL_HUMMING = Field(
    "row", "the weights that the package humming is given; {humming.act} of the mode follows from "
    "them", required=False, of={
        "weight": Field("text", "number format; {fact} is filled in"),
        "scale": Field("text", "number format of the scales; absent: 16 bits", required=False),
        "group": Field("int", "input features per scale; absent: quant.group_size",
                       required=False),
        "input": Field("text", "key of humming.inputs; absent: quant.act_key", required=False),
        "keeps": Field("list", "keys that are never replaced", required=False,
                       of=Field("text", "a key of humming.inputs")),
    })

_SCHEMA = Field("row", "a schema class", of={
    "class": Field("text", "its name"),
    "required": Field("list", "fields that a config must have", required=False,
                      of=Field("text", "a field")),
    "optional": Field("list", "fields that a config may have", required=False,
                      of=Field("text", "a field")),
    "given": Field("map", "what the class has whatever a config says", required=False,
                   of=Field("text", "a value")),
    "aliases": Field("map", "field -> its other spellings", required=False,
                     of=Field("list", "spellings", of=Field("text", "a field"))),
})

WEIGHT_SCHEMAS = Field("map", "quant_method -> how --quantization humming reads its weights",
                       of=_SCHEMA)
INPUT_SCHEMAS = Field("map", "quant_method -> how it reads its activations", of=_SCHEMA)

SGLANG_HUMMING = Field("row", "the package humming as SGLang calls it", of={
    "source": Field("text", "engine file:symbol"),
    "weight_schemas": WEIGHT_SCHEMAS,
    "input_schemas": INPUT_SCHEMAS,
    "tiles": Field("map", "capability x 10 -> activation formats that the package has tiles for",
                   of=Field("list", "number formats", of=Field("text", "a format"))),
})

HUMMING = Field("row", "the activations that Humming's kernels compute with", of={
    "source": Field("text", "engine file:symbol"),
    "inputs": Field("map", "quant.act_key -> activations as they are asked for", of=Field(
        "row", "activations", of={
            "key": Field("text", "an id of quant_keys, where a kernel's words name it",
                         required=False),
            "dtype": Field("text", "number format; absent: 16 bits", required=False),
            "group": Field("int", "input features per scale, 0 for all; absent: quant.act_group",
                           required=False),
            "scale": Field("text", "number format of the scales", required=False),
        })),
    "min_capability": Field("map", "activation format -> capability x 10 from which it runs",
                            of=Field("int", "a capability")),
    "served_in": Field("map", "activation format -> the only dtype of the model that it goes with",
                       required=False, of=Field("text", "a dtype")),
    "undocumented": Field("row", "formats that run on some devices only", of={
        "dtypes": Field("list", "number formats", of=Field("text", "a format")),
        "capabilities": Field("list", "capability x 10", of=Field("int", "a capability")),
    }),
    "slow": Field("list", "activation formats that are replaced where they would run", of={
        "dtypes": Field("list", "number formats", of=Field("text", "a format")),
        "from": Field("int", "first capability x 10"),
        "to": Field("int", "last capability x 10", required=False),
    }),
    "fallbacks": Field("map", "activation format -> formats tried in its place, in order",
                       of=Field("list", "formats", of=Field("text", "a format"))),
    "weight_schemas": WEIGHT_SCHEMAS,
    "input_schemas": INPUT_SCHEMAS,
    "key_dtypes": Field("map", "number format -> what the engine prints of it in a quantization "
                        "key", of=Field("text", "a dtype")),
    "key_scales": Field("map", "number format of scales -> what it prints of it",
                        of=Field("text", "a dtype")),
    "input_modes": Field("map", "value of InputQuantizationMode -> its member",
                         of=Field("text", "a name")),
})
