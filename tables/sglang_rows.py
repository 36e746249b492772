"""The schema of an SGLang version's table."""

from __future__ import annotations

from quantplan.tables.engine_head_rows import HEAD, MODEL_TYPES
from quantplan.tables.platform_rows import PLATFORM_ROWS
from quantplan.tables.requirement_rows import REQUIREMENT, REQUIREMENTS
from quantplan.tables.schema import Field, Row
from quantplan.tables.sglang_attention_rows import ATTENTION

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

REFUSAL: Row = {
    "type": Field("text", "the exception"),
    "message": Field("text", "the engine's words; {fact} is filled in"),
    "hint": Field("text", "what the user can do"),
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

CHANGED_MODULE: Row = {
    "path": Field("text", "the module's path in our families"),
    "to": Field("text", "its path in this engine", required=False),
    "module": Field("text", "its class in this engine", required=False),
    "quantized": Field("flag", "whether it is built with the quantization config",
                       required=False),
    "kind": Field("text", "its kind of module in this engine", required=False),
    "before": Field("text", "the module (of our families) before which it is built, where that "
                    "is there", required=False),
    "whole": Field("flag", "whether its outputs are one partition", required=False),
    "unchecked_blocks": Field("flag", "whether a rank may hold parts of its weight blocks",
                              required=False),
    "known_as": Field("text", "its prefix, where known_as of the class does not say it",
                      required=False),
    "leaves": Field("list", "the only leaves that it has", required=False,
                    of=Field("text", "a leaf")),
    "rules": Field("list", "what its class does besides: says_kv_heads where ranks do not divide "
                   "these; whole_heads asserts that they divide num_attention_heads, "
                   "whole_head_size that these divide hidden_size, mamba1_ranks that ranks divide "
                   "a mixer's intermediate size", required=False,
                   of=Field("text", "a rule", choices=(
                       "says_kv_heads", "whole_heads", "whole_head_size", "mamba1_ranks"))),
    "dropped": Field("text", "when it is not built as a layer: always, or where shared experts "
                     "are among the routed ones", required=False,
                     choices=("always", "shared_fused")),
    "needs": Field("list", "facts without which the change is not made; of several such changes "
                   "of a module the first that has them is", required=False, of=REQUIREMENT),
}

SHARED_FUSED: Row = {
    "equal": Field("list", "config fields that must be equal; the only condition where it is given",
                   required=False, of=Field("text", "a field")),
    "shared": Field("int", "the number of shared experts, where it matters", required=False),
    "shared_only": Field("flag", "the class takes no other number above 0", required=False),
    "fits": Field("list", "models whose shared experts may be so; any one line", required=False,
                  of={
                      "experts": Field("list", "numbers of routed experts; absent: any",
                                       required=False, of=Field("int", "a number")),
                      "needs": REQUIREMENTS,
                  }),
    "apart": Field("list", "where they stay apart all the same; any one line", required=False,
                   of={"needs": REQUIREMENTS}),
    "source": Field("text", "engine file:symbol"),
}

EXPERTS_BACKEND: Row = {
    "format": Field("text", "the format of the routed experts: a name of "
                    "dispatch/sglang/expert_formats.py"),
    "families": Field("list", "gpu.family, where not all", required=False,
                      of=Field("int", "capability x 10, rounded down to 10")),
    "backend": Field("text", "what --moe-runner-backend auto becomes"),
    "source": Field("text", "engine file:symbol"),
}

PASSED_BACKEND: Row = {
    "families": Field("list", "gpu.family, where not all", required=False,
                      of=Field("int", "capability x 10, rounded down to 10")),
    "methods": Field("list", "quantization, where not all; none for none", required=False,
                     of=Field("text", "a method")),
    "untyped": Field("flag", "only without --quantization and without expert parallel ranks",
                     required=False),
    "over": Field("list", "backends besides auto that it replaces", required=False,
                  of=Field("text", "a backend")),
    "moe_backend": Field("text", "what --moe-runner-backend auto becomes"),
}

SERVER_PASS: Row = {
    "families": Field("list", "gpu.family of the GPUs on which it is made, where not on all",
                      required=False, of=Field("int", "capability x 10, rounded down to 10")),
    "reads": Field("text", "which name of the method it goes by: as typed, else the checkpoint's, "
                   "which it then writes into --quantization; that after all overrides; or "
                   "quant_method of config.json alone", required=False,
                   choices=("typed", "resolved", "written")),
    "copies": Field("list", "names after all overrides that it writes into --quantization",
                    required=False, of=Field("text", "a method")),
    "algos": Field("map", "quant_algo -> what it writes in place of modelopt; other for others",
                   required=False, of=Field("text", "a method")),
    "copies_if_auto": Field("flag", "it writes them only where --moe-runner-backend is auto",
                            required=False),
    "methods": Field("list", "quantization for which auto becomes the backend; none for none",
                     required=False, of=Field("text", "a method")),
    "moe_backend": Field("text", "what --moe-runner-backend auto becomes", required=False),
    "backends": Field("list", "what it becomes, where that depends; the first that fits",
                      required=False, of=PASSED_BACKEND),
    "dtypes": Field("map", "quantization -> what --dtype becomes, whatever was asked",
                    required=False, of=Field("text", "a dtype")),
    "asserts": Field("row", "what it asserts of ModelOpt checkpoints", required=False, of={
        "field": Field("text", "the field of the config"),
        "value": Field("text", "the only value"),
    }),
    "weight_only_experts": Field("row", "what it makes of mixed checkpoints with experts of "
                                 "W4A16_NVFP4, as config.json lists them", required=False, of={
                                     "within": Field(
                                         "text", "what the names of experts contain"),
                                     "moe_backend": Field("text", "the backend"),
                                     "says": Field("text", "the ValueError for another one"),
                                     "config_class": Field(
                                         "text", "the class of the config, which lacks the "
                                         "attribute where config.json has no such list",
                                         required=False),
                                 }),
    "not_known": Field("list", "quantization for which what it does is not in the table",
                       required=False, of=Field("text", "a method")),
    "not_known_with": Field("text", "field of quantization_config with which what it does is not "
                            "in the table", required=False),
    "reads_weights": Field("flag", "without a quantization config the headers of the weights say "
                           "whether it is fp8", required=False),
    "source": Field("text", "engine file:symbol"),
}

END: Row = {
    "at": Field("text", "the module before which it ends"),
    "after": Field("flag", "it ends after that module", required=False),
    "lacks": Field("list", "only where this field is not in config.json", required=False,
                   of=Field("text", "a key")),
    "made": Field("list", "only where that module has one of these methods or schemes",
                  required=False, of=Field("text", "a method or a scheme")),
    "of": Field("text", "the module that `made` is about, where it is another one",
                required=False),
    "unless": Field("row", "only where the language model's config has another value",
                    required=False, of={
                        "field": Field("text", "a field"),
                        "values": Field("list", "values", of=Field("text", "a value")),
                    }),
    "type": Field("text", "the exception"),
    "message": Field("text", "the engine's words; {value} is the field's value"),
    "hint": Field("text", "what the user can do"),
    "source": Field("text", "engine file:symbol"),
}

MODEL: Row = {
    "architectures": Field("list", "registered model classes",
                           of=Field("text", "an architecture")),
    "like": Field("text", "the architecture whose row says what this one does not",
                  required=False),
    "server_pass_of": Field("text", "the architecture whose server_pass is its own too",
                            required=False),
    "packed": Field("map", "the class's packed_modules_mapping", required=False,
                    of=Field("list", "leaves", of=Field("text", "a leaf"))),
    "known_as": Field("map", "beginning of a path -> that of its prefix, by which quantization "
                      "configs know it, where these differ", required=False,
                      of=Field("text", "the beginning of a prefix")),
    "renames": Field("map", "the class's hf_to_sglang_mapper: substr, prefix or suffix -> what "
                     "the names of a quantization config have there -> what the engine has",
                     required=False, of=Field("map", "old -> new", of=Field("text", "new"))),
    "methods": Field("list", "the only methods under which this class serves the model",
                     required=False,
                     of=Field("text", "a method")),
    "otherwise": Field("text", "the class that serves the model under other methods",
                       required=False),
    "single_experts": Field("list", "names of an expert's layers in the order in which they are "
                            "built, where each expert of a rank has layers of its own: to the "
                            "intermediate size, from it, to it", required=False,
                            of=Field("text", "a name")),
    "modules": Field("list", "modules of our families that this engine builds otherwise",
                     required=False, of=CHANGED_MODULE),
    "shared_fused": Field("row", "when shared experts are built as routed ones, on ranks that "
                          "cut each expert", required=False, of=SHARED_FUSED),
    "quantized_text": Field("flag", "whether its config class takes the quantization_config of "
                            "text_config where there is no other", required=False),
    "packed_experts": Field("flag", "whether routed experts are packed MXFP4 without any word of "
                            "the config, unless SGLANG_DSV4_FP4_EXPERTS or headers say otherwise",
                            required=False),
    "experts_backends": Field("list", "what --moe-runner-backend auto becomes by the format of the "
                              "routed experts, before server_pass; the first that fits",
                              required=False, of=EXPERTS_BACKEND),
    "server_pass": Field("row", "what the server arguments become for these classes, where "
                         "--quantization also takes the checkpoint's own name", required=False,
                         of=SERVER_PASS),
    "ends": Field("list", "what ends the start while the layers are built, whatever they are",
                  required=False, of=END),
    "shares_head": Field("text", "when lm_head is the embedding, and no layer of its own: always, "
                         "where tie_word_embeddings says so, or unless it says otherwise, or "
                         "where that of the whole config says so, whatever its text config says",
                         required=False, choices=("always", "tied", "unless_untied", "whole")),
    "says_routing": Field("flag", "whether its experts are built with the form of the routing",
                          required=False),
    "reads": Field("map", "field of our families -> what the class reads in its place; nothing "
                   "where it reads no field", required=False, of=Field("row", "what it reads", of={
                       "field": Field("text", "its own field", required=False),
                       "default": Field("int", "what its config class says without one",
                                        required=False),
                   })),
    "dtype": Field("text", "the dtype that the server sets for the class, whatever is asked for",
                   required=False),
    "reads_head_dim": Field("flag", "whether the class takes head_dim from the config where vLLM's "
                            "divides hidden_size by the heads", required=False),
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
        "not_known": Field("flag", "what it does is not in the table", required=False),
        "decides_always": Field("flag", "for models without routed experts too", required=False),
    }),
    "moe_backends_source": Field("text", "engine file:symbol"),
    "moe_backend_rewrites": Field("list", "--moe-runner-backend under some --quantization values",
                                  of={
        "method": Field("text", "the --quantization value"),
        "families": Field("list", "gpu.family, where not all", required=False,
                          of=Field("int", "capability x 10, rounded down to 10")),
        "keeps": Field("list", "backends that stay", of=Field("text", "a backend")),
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
    "kv_dtypes": Field("map", "--kv-cache-dtype -> the torch dtype of the cache",
                       of=Field("text", "a dtype")),
    "kv_dtypes_source": Field("text", "engine file:symbol"),
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
    "platforms": PLATFORM_ROWS,
}
