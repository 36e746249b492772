"""The schema of what an engine version does with ModelOpt checkpoints."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row


def modelopt(requirement: Row) -> Row:
    """Return the schema of an engine table's `modelopt`; `requirement` is that of its checks."""
    return {
        "algos": Field("list", "quant_algo values of linear layers, in the engine's order", of={
            "id": Field("text", "the quant_algo"),
            "config_class": Field("text", "the config class that accepts it for a whole model"),
            "method": Field("text", "the method class of its linear layers"),
            "family": Field("text", "the candidate list of its kernels"),
            "act": Field("text", "how activations are quantized"),
            "quant": Field("map", "facts that the list's kernels read",
                           of=Field("any", "a fact's value")),
            "pads_n": Field("int", "kernels see n rounded up to a multiple of this",
                            required=False),
            "requires": Field("list", "what a layer's shape must be", required=False,
                              of=requirement),
        }),
        "algos_source": Field("text", "engine file:symbol"),
        "mixed_algo": Field("text", "the quant_algo that names one per layer"),
        "mixed_class": Field("text", "the config class that serves it"),
        "block_algos": Field("list", "quant_algo values of block-FP8 experts",
                             of=Field("text", "a quant_algo")),
        "block_algos_source": Field("text", "engine file:symbol"),
        "codecs": Field("list", "quant_algo values of packed blocks", of={
            "id": Field("text", "the quant_algo, in lower case"),
            "block": Field("int", "weights of one block along k"),
            "bytes": Field("int", "bytes of one block"),
        }),
        "codecs_source": Field("text", "engine file:symbol"),
        "codec_requires": Field("list", "what their linear method asks, in the engine's order",
                                of=requirement),
        "classes": Field("list", "config classes of one quant_algo", of={
            "id": Field("text", "the engine's class name"),
            "unsupported": Field("text", "the error of another quant_algo; {word} is filled in"),
            "required": Field("list", "fields that hf_quant_config.json must have",
                              required=False, of=Field("text", "a field")),
            "missing": Field("text", "the error when one is missing; {fields} is filled in",
                             required=False),
        }),
        "flat_excluded": Field("list", "fields of quantization_config that name the modules left "
                               "in 16 bits; the first that is there counts",
                               of=Field("text", "a field")),
        "flat_excluded_source": Field("text", "engine file:symbol"),
        "kv_cache_dtypes": Field("map", "kv_cache_quant_algo in lower case -> --kv-cache-dtype",
                                 of=Field("text", "a dtype")),
        "kv_cache_source": Field("text", "engine file:symbol"),
    }
