"""The schema of the schemes of compressed-tensors and Quark in an engine table."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

COMPRESSED_TENSORS = Field("row", "what a config says by its formats", of={
    "activation_formats": Field("list", "formats that quantize activations",
                                of=Field("text", "a format")),
    "source": Field("text", "engine file:symbol"),
    "module_parents": Field("map", "linear class -> the classes it derives from, which a "
                            "transform's target may name", of=Field(
                                "list", "classes", of=Field("text", "a class"))),
    "module_parents_source": Field("text", "engine file"),
    "fused_transform": Field("row", "the method that rotates and quantizes in one step", of={
        "method": Field("text", "the engine's class name"),
        "scheme": Field("text", "the scheme that it serves"),
        "head_dims": Field("list", "block sizes of the rotation", of=Field("int", "a size")),
        "min_capability": Field("int", "capability x 10"),
    }),
    "fused_transform_source": Field("text", "engine file:symbol"),
})

SCHEME: Row = {
    "id": Field("text", "the engine's class name"),
    "min_capability": Field("int", "get_min_capability(), as capability x 10"),
    "kernel_first": Field("flag", "its constructor chooses the kernel before the capability "
                          "of the scheme is checked", required=False),
    "when": Field("list", "facts of a config group that it fits; any one line", of=Field(
        "map", "facts", of=Field("any", "a value, or a list of values"))),
    "integer": Field("row", "what it asks of the mixed-precision kernels", required=False, of={
        "types": Field("map", "bits -> weight type", of=Field("text", "a type")),
        "zero_point_types": Field("map", "bits -> weight type where weights are asymmetric; "
                                  "absent: zero points are not used", required=False,
                                  of=Field("text", "a type")),
        "bad_bits": Field("text", "the engine's words for other bits; {bits} and {supported} are "
                          "filled in", required=False),
        "group_sizes": Field("list", "group sizes that its constructor accepts; absent: all",
                             required=False, of=Field("int", "input features")),
        "bad_group": Field("text", "the engine's words for other groups", required=False),
        "act_type": Field("text", "activation type; absent: the model's", required=False),
        "humming_input": Field("text", "integer type of the activations that Humming alone reads",
                               required=False),
        "marlin_input": Field("flag", "whether VLLM_MARLIN_INPUT_DTYPE applies on Marlin",
                              required=False),
        "unpacked_when": Field("map", "facts under which no kernel is looked for: the weight is "
                               "unpacked and multiplied in 16 bits", required=False,
                               of=Field("any", "a value, or a list of values")),
        "whole_groups": Field("text", "when a group that straddles ranks is refused: before the "
                              "kernel is chosen, or after, with the layer's name or without words",
                              choices=("before", "after", "after_named", "assert")),
    }),
    "source": Field("text", "engine file:symbol"),
}

QUARK_SCHEME: Row = {
    "id": Field("text", "the engine's class name"),
    "min_capability": Field("int", "get_min_capability(), as capability x 10"),
    "kernel_first": Field("flag", "its constructor chooses the kernel before the capability "
                          "of the scheme is checked", required=False),
    "when": Field("list", "facts of a layer's config that it fits; any one line", of=Field(
        "map", "facts", of=Field("any", "a value, or a list of values"))),
    "source": Field("text", "engine file:symbol"),
}
