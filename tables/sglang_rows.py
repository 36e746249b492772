"""The schema of an SGLang version's table."""

from __future__ import annotations

from quantplan.tables.engine_head_rows import HEAD, MODEL_TYPES
from quantplan.tables.humming_rows import SGLANG_HUMMING
from quantplan.tables.platform_rows import PLATFORM_ROWS
from quantplan.tables.requirement_rows import REQUIREMENT, REQUIREMENTS
from quantplan.tables.schema import Field, Row
from quantplan.tables.sglang_attention_rows import ATTENTION
from quantplan.tables.sglang_memory_rows import MEMORY
from quantplan.tables.sglang_model_rows import ACTIVATIONS, MODEL

METHOD: Row = {
    "id": Field("text", "the registered name"),
    "config_class": Field("text", "the engine's class name"),
    "min_capability": Field("int", "get_min_capability(), as capability x 10"),
    "act_dtypes": Field("list", "get_supported_act_dtypes(), in its order",
                        of=Field("text", "a dtype")),
    "resolves": Field("text", "the module of dispatch/sglang that reads its config and assigns "
                      "layers; absent: what its layers run is not in the table", required=False),
    "optimized": Field("flag", "whether the engine does not warn that it is not fully optimized",
                       required=False),
    "optimized_on": Field("list", "gpu.family of the GPUs on which it does not warn",
                          required=False, of=Field("int", "capability x 10, rounded down to 10")),
    "config_files": Field("list", "ends of names of the files that it reads where config.json "
                          "has no config; without such a file it refuses", required=False,
                          of=Field("text", "an end of a name")),
    "online": Field("flag", "it quantizes while loading where there is no such file",
                    required=False),
    "without_config": Field("row", "what ends the start without a quantization config",
                            required=False, of={
                                "type": Field("text", "the exception"),
                                "message": Field("text", "the engine's words"),
                            }),
    "served_on": Field("row", "the only GPUs for which the server starts with it", required=False,
                       of={
                           "capabilities": Field("list", "capability x 10",
                                                 of=Field("int", "a capability")),
                           "type": Field("text", "the exception"),
                           "message": Field("text", "the engine's words"),
                           "source": Field("text", "engine file:symbol"),
                       }),
    "kv_method": Field("text", "the method of every attention layer", required=False),
    "source": Field("text", "engine file:symbol"),
}

REFUSAL: Row = {
    "type": Field("text", "the exception"),
    "message": Field("text", "the engine's words; {fact} is filled in"),
    "hint": Field("text", "what the user can do"),
}

OPERATOR: Row = {
    "id": Field("text", "its name in this list"),
    "kernel": Field("text", "the operator that the layer calls"),
    "requires": REQUIREMENTS,
    "mode": Field("text", "what it computes"),
    "act": Field("text", "how activations are quantized; {fact} is filled in"),
    "fused": Field("flag", "whether scales are applied in the product itself", required=False),
    "runner": Field("text", "of experts: the MoeRunner's backend; absent: the method makes none",
                    required=False),
    "because": Field("text", "why it does not compute in fewer bits", required=False),
    "kernel_backend": Field("text", "the backend that it is called with", required=False),
    "fails": Field("text", "of a layer that has no operator: the error of the first forward",
                   required=False),
    "refuses": Field("row", "of experts: what ends the start as their runner is made",
                     required=False, of=REFUSAL),
    "source": Field("text", "engine file:symbol"),
}

OPERATORS: Row = {
    "id": Field("text", "the list's name"),
    "operators": Field("list", "in the engine's order; the first whose requirements pass runs",
                       of=OPERATOR),
    "after_loading": Field("list", "requirements on the weights' post-processing, after every "
                           "layer is built; the first that fails ends the start with a ValueError",
                           required=False, of=REQUIREMENT),
    "activations": Field("list", "of experts: activations besides gated SiLU that they serve",
                         required=False, of=Field("text", "an activation")),
    "source": Field("text", "engine file:symbol"),
}

CT_SCHEME: Row = {
    "id": Field("text", "the engine's class name, or a name of the refusal"),
    "when": Field("list", "facts of a config group that it fits; any one line", of=Field(
        "map", "facts", of=Field("any", "a value, or a list of values"))),
    "min_capability": Field("int", "get_min_capability(), as capability x 10", required=False),
    "below": Field("text", "the scheme that serves the group on older GPUs", required=False),
    "below_because": Field("text", "why older GPUs have that one; {fact} is filled in",
                           required=False),
    "below_when": Field("map", "facts at which that scheme serves it on every GPU", required=False,
                        of=Field("scalar", "a value")),
    "by": Field("text", "the argument of the weights that chooses the operators",
                required=False, choices=("strategy", "num_bits")),
    "operators": Field("map", "that argument -> list of operators; absent: not in the table",
                       required=False, of=Field("text", "a list")),
    "other": Field("row", "what ends the start with another value of that argument",
                   required=False, of=REFUSAL),
    "refused": Field("row", "what ends the start with such a group", required=False, of=REFUSAL),
    "source": Field("text", "engine file:symbol"),
}

SGLANG_DOCUMENT: Row = {
    **HEAD,
    "model_types": MODEL_TYPES,
    "old_gpus": Field("row", "GPUs whose dtype the engine changes, or which it refuses", of={
        "float16_below": Field("int", "capability x 10 below which every model runs in float16"),
        "refused_below": Field("int", "capability x 10 below which the engine ends"),
        "type": Field("text", "the exception"),
        "message": Field("text", "the engine's words"),
        "source": Field("text", "engine file:symbol"),
    }),
    "architectures": Field("list", "registered model classes", of=Field("text", "a class")),
    "architectures_source": Field("text", "engine file:symbol"),
    "methods": Field("list", "registered quantization methods, in registry order", of=METHOD),
    "methods_source": Field("text", "engine file:symbol"),
    "quantization_choices": Field("list", "what --quantization takes on the command line",
                                  of=Field("text", "a name")),
    "quantization_choices_source": Field("text", "engine file:symbol"),
    "compatible": Field("map", "--quantization -> names in the checkpoint's config that it may "
                        "stand over", of=Field("list", "names", of=Field("text", "a name"))),
    "requantizes": Field("list", "--quantization values that stand over any checkpoint",
                         of=Field("text", "a name")),
    "names_source": Field("text", "engine file:symbol"),
    "modelopt_algos": Field("list", "quant_algo of a ModelOpt config -> the method; the first "
                            "that fits", of={
                                "equals": Field("text", "the algorithm", required=False),
                                "holds": Field("text", "a part of its name", required=False),
                                "method": Field("text", "the method"),
                            }),
    "modelopt_source": Field("text", "engine file:symbol"),
    "marlin": Field("row", "what Marlin serves (check_marlin_supported)", of={
        "min_capability": Field("int", "capability x 10"),
        "group_sizes": Field("list", "group sizes", of=Field("int", "a size")),
        "thread_n": Field("int", "min_thread_n"),
        "thread_k": Field("int", "min_thread_k"),
        "experts_n": Field("int", "what the hidden size of experts is a multiple of"),
        "experts_k": Field("int", "what their intermediate size is a multiple of"),
        "experts_acts": Field("list", "the activations of gated experts",
                              of=Field("text", "an activation")),
        "source": Field("text", "engine file:symbol"),
    }),
    "fp8_backend_rewrites": Field("list", "what --fp8-gemm-backend auto becomes first", of={
        "capabilities": Field("list", "capability x 10", of=Field("int", "a capability")),
        "backend": Field("text", "the backend"),
        "because": Field("text", "the reason"),
        "source": Field("text", "engine file:symbol"),
    }),
    "fp8_backends": Field("list", "--fp8-gemm-backend values and what they ask", of={
        "id": Field("text", "the value"),
        "requires": Field("list", "requirements; the first that fails ends the start",
                          required=False, of=REQUIREMENT),
        "type": Field("text", "the exception of a requirement that fails", required=False),
    }),
    "fp8_backends_source": Field("text", "engine file:symbol"),
    "former_prefix": Field("row", "what names of environment variables began with: such a variable "
                           "counts under its new name, and wins", of={
        "old": Field("text", "the former prefix"),
        "new": Field("text", "the prefix now"),
        "source": Field("text", "engine file:symbol"),
    }),
    "moe_backends": Field("list", "--moe-runner-backend values", of={
        "id": Field("text", "the value"),
        "takes": Field("list", "the only --quantization values, or none, that it starts with",
                       required=False, of=Field("text", "a method")),
        "says": Field("text", "the assertion's words for others; {method} is filled in",
                      required=False),
        "whole_experts": Field("row", "--quantization values under which it is refused with expert "
                               "parallelism", required=False, of={
            "methods": Field("list", "the values", of=Field("text", "a method")),
            "says": Field("text", "the assertion's words"),
        }),
        "fp8_asserts": Field("list", "what Fp8MoEMethod asserts when it is made; the first that "
                             "fails ends the start", required=False, of=REQUIREMENT),
        "serves_as": Field("text", "the value whose place it takes in the layers", required=False),
        "only": Field("row", "the only method that it serves; another ends the start",
                      required=False, of={
            "method": Field("text", "the method's class"),
            "type": Field("text", "the exception"),
            "message": Field("text", "the engine's words; {method} is filled in"),
            "source": Field("text", "engine file:symbol"),
        }),
        "spreads": Field("row", "it stands for auto with the exchange of tokens of its name, which "
                         "spreads experts over all ranks, and is refused on other GPUs",
                         required=False, of={
            "families": Field("list", "gpu.family", of=Field("int", "capability x 10, rounded")),
            "type": Field("text", "the exception"),
            "message": Field("text", "the engine's words"),
            "source": Field("text", "engine file:symbol"),
        }),
        "refused": Field("row", "what ends the start with it, once arguments are resolved",
                         required=False, of={
            "type": Field("text", "the exception"),
            "message": Field("text", "the engine's words"),
            "source": Field("text", "engine file:symbol"),
        }),
        "not_known": Field("flag", "what it does is not in the table", required=False),
    }),
    "moe_backends_source": Field("text", "engine file:symbol"),
    "moe_backend_rewrites": Field("list", "--moe-runner-backend under some --quantization values",
                                  of={
        "method": Field("text", "the --quantization value"),
        "families": Field("list", "gpu.family, where not all", required=False,
                          of=Field("int", "capability x 10, rounded down to 10")),
        "keeps": Field("list", "backends that stay", required=False,
                       of=Field("text", "a backend")),
        "asked": Field("list", "the only backends that do not stay", required=False,
                       of=Field("text", "a backend")),
        "backend": Field("text", "what the others become, or auto alone where others are refused"),
        "refuses": Field("text", "the ValueError's words for others but auto", required=False),
        "source": Field("text", "engine file:symbol"),
    }),
    "mxfp8_backends": Field("list", "--fp8-gemm-backend values that have an MXFP8 kernel of their "
                            "own; the others mean auto", of={
        "id": Field("text", "the value"),
        "requires": Field("list", "requirements; the first that fails ends the start with a "
                          "RuntimeError", of=REQUIREMENT),
    }),
    "mxfp8_backends_source": Field("text", "engine file:symbol"),
    "fp4_backends": Field("list", "--fp4-gemm-backend values", of={
        "id": Field("text", "the value"),
    }),
    "fp4_backends_source": Field("text", "engine file:symbol"),
    "fp4_auto": Field("list", "what --fp4-gemm-backend auto becomes; the first that fits", of={
        "backend": Field("text", "the backend"),
        "needs": REQUIREMENTS,
        "source": Field("text", "engine file:symbol"),
    }),
    "modelopt_fp4_excludes": Field("list", "keys of a flat ModelOpt config that may name the "
                                   "excluded modules, in order", of=Field("text", "a key")),
    "modelopt_fp4_excludes_source": Field("text", "engine file:symbol"),
    "attention": Field("row", "attention backends, pages and the KV cache's dtype", of=ATTENTION),
    "memory": Field("row", "what the server sets aside of a GPU, and its pools", of=MEMORY),
    "kv_dtypes": Field("map", "--kv-cache-dtype -> the torch dtype of the cache",
                       of=Field("text", "a dtype")),
    "kv_dtypes_source": Field("text", "engine file:symbol"),
    "humming": SGLANG_HUMMING,
    "operators": Field("list", "lists of operators that a layer's method chooses from",
                       of=OPERATORS),
    "ct_formats": Field("list", "formats of compressed-tensors that quantize activations",
                        of=Field("text", "a format")),
    "ct_formats_source": Field("text", "engine file:symbol"),
    "ct_schemes": Field("list", "schemes of compressed-tensors; the first that fits a config "
                        "group", of=CT_SCHEME),
    "ct_pieces": Field("map", "list of operators -> what a layer's sizes must divide into",
                       of=Field("list", "sizes", of={
                           "operator": Field("text", "the operator that asks"),
                           "of": Field("text", "output features n or input features k",
                                       choices=("n", "k")),
                           "multiple_of": Field("int", "the size of a piece"),
                       })),
    "ct_pieces_source": Field("text", "engine file:symbol"),
    "slim_schemes": Field("list", "ModelSlim's words for a layer -> the scheme", of={
        "id": Field("text", "the word"),
        "scheme": Field("text", "the engine's class"),
        "type": Field("text", "the exception after loading", required=False),
        "message": Field("text", "its words", required=False),
        "source": Field("text", "engine file:symbol"),
    }),
    "fused_fallback": Field("map", "fused layer -> leaves where the class declares no "
                            "packed_modules_mapping",
                            of=Field("list", "leaves", of=Field("text", "a leaf"))),
    "fused_fallback_source": Field("text", "engine file:symbol"),
    "set_by_server": Field("list", "what the server sets before a model class is read, where the "
                           "answer is that of the class alone", of={
                               "architecture": Field("text", "the first architecture"),
                               "ends_with": Field("text", "how the layer's path ends"),
                               "method": Field("text", "the method that the class gives it"),
                               "families": Field("list", "capability families", of=Field(
                                   "int", "gpu.family")),
                               "variable": Field("text", "the variable that stops it when set"),
                               "says": Field("text", "what becomes of the layer"),
                               "hint": Field("text", "what the user can do"),
                               "source": Field("text", "engine file:symbol"),
                           }),
    "forwards": Field("list", "what chosen operators ask only when they run", of={
        "kernel": Field("text", "the operator, or the runner of experts"),
        "modes": Field("list", "only where it computes this", required=False,
                       of=Field("text", "a mode")),
        "runs": Field("row", "what the device must be", of=REQUIREMENT),
        "evidence": Field("text", "where else than in the engine's own files that is known from"),
        "hint": Field("text", "what to do next"),
        "source": Field("text", "engine file:symbol that calls it"),
    }),
    "uneven_configs": Field("list", "configs that cannot say what the server asks, where layers "
                            "with a sliding window have another number of it", of={
                                "model_types": Field("list", "model_type of config.json",
                                                     of=Field("text", "a model type")),
                                "asked": Field("text", "the field that the server asks for"),
                                "field": Field("text", "the field of those layers"),
                                "within": Field("text", "without it, the object that has one of "
                                                "the same name"),
                                "type": Field("text", "the exception"),
                                "source": Field("text", "engine file:symbol"),
                            }),
    "models": Field("list", "model classes that are in the table", of=MODEL),
    "activations": Field("list", "activations that model classes take", of=ACTIVATIONS),
    "platforms": PLATFORM_ROWS,
}
