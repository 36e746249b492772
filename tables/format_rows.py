"""The schema of weight formats, how each is stored and allocated, and of KV cache dtypes."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

TENSOR: Row = {
    "name": Field("text", "last part of the tensor's name"),
    "holds": Field("text", "what it is for", choices=(
        "weight", "scale", "zero_point", "activation_scale", "metadata")),
    "dtype": Field("text", "safetensors dtype in the file; model: the model's own dtype"),
    "engine": Field("text", "dtype that the engine allocates when it differs from the file's; "
                    "model: the serving dtype; none: never allocated", required=False),
    "dims": Field("list", "sizes, outermost first: n and k features, groups along k, n_blocks and "
                  "k_blocks, or a number in quotes", of=Field("text", "a size")),
    "packed": Field("text", "the size whose values are packed into 32-bit words", required=False,
                    choices=("n", "k")),
    "only": Field("text", "present only with this feature of the format", required=False,
                  choices=("static_activation", "static_activation_zero_point", "zero_points",
                           "activation_order")),
    "once": Field("flag", "the engine keeps one for a whole fused layer", required=False),
    "because": Field("text", "why the engine differs from the file", required=False),
}

LAYOUT: Row = {
    "id": Field("text", "short name"),
    "quant_method": Field("text", "quant_method of the checkpoint's config"),
    "number": Field("text", "kind of number", choices=("fp", "int")),
    "scale": Field("text", "what one weight scale covers",
                   choices=("tensor", "channel", "block", "group")),
    "tensors": Field("list", "tensors of one quantized checkpoint module", of=TENSOR),
    "source": Field("text", "the engine's create_weights"),
}

SCALE: Row = {
    "granularity": Field("text", "what one scale covers",
                         choices=("tensor", "channel", "block", "group")),
    "dtype": Field("text", "dtype that the engine allocates; model: the serving dtype"),
    "block": Field("list", "sizes of a block, n first", required=False,
                   of=Field("int", "features")),
    "group": Field("int", "input features per scale", required=False),
}

FORMAT: Row = {
    "id": Field("text", "short name, the value of --as"),
    "aliases": Field("list", "other names", of=Field("text", "a name")),
    "title": Field("text", "what people call it"),
    "covers": Field("text", "which modules it quantizes: linear layers inside decoder layers; "
                    "embeddings, norms and lm_head stay as they are",
                    choices=("decoder-linear", "none")),
    "weight_bits": Field("int", "bits of one weight"),
    "layout": Field("text", "id of a layout", required=False),
    "scale": Field("row", "the weight scales", required=False, of=SCALE),
    "zero_points": Field("flag", "weights have zero points", required=False),
    "activation_scale": Field("text", "where activation scales come from", required=False,
                              choices=("none", "static", "dynamic")),
    "dtype": Field("text", "16-bit formats: the model's dtype", required=False),
    "config": Field("any", "quantization_config as the usual tool writes it", required=False),
    "source": Field("text", "the tool that writes it"),
    "kind": Field("text", "how this row is known", choices=("source", "spec")),
}

FORMAT_DOCUMENT: Row = {
    "dtype_bits": Field("map", "safetensors dtype -> bits", of=Field("int", "bits")),
    "dtype_bits_source": Field("text", "where the bits come from"),
    "model_dtypes": Field("map", "serving dtype -> safetensors dtype",
                          of=Field("text", "a dtype")),
    "not_weights": Field("list", "tensors of checkpoints that take no weight memory", of={
        "name": Field("text", "last part of the tensor's name"),
        "because": Field("text", "what the engine does with it"),
        "source": Field("text", "engine file and symbol"),
    }),
    "leaves_in": Field("map", "quant_method -> key of its config that lists the modules left in 16 "
                       "bits, where a file does not say it without", of=Field("text", "a key")),
    "layouts": Field("list", "how quantized modules are stored and allocated", of=LAYOUT),
    "formats": Field("list", "formats by name", of=FORMAT),
    "what_if": Field("list", "formats that `budget` compares, in this order",
                     of=Field("text", "id of a format")),
}
