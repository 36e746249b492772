"""The schema of model classes in an SGLang version's table: what they build otherwise than our
families say, and what the server makes of its arguments for them."""

from __future__ import annotations

from quantplan.tables.requirement_rows import REQUIREMENT, REQUIREMENTS
from quantplan.tables.schema import Field, Row

CHANGED_MODULE: Row = {
    "path": Field("text", "the module's path in our families"),
    "to": Field("text", "its path in this engine", required=False),
    "module": Field("text", "its class in this engine", required=False),
    "quantized": Field("flag", "whether it is built with the quantization config",
                       required=False),
    "before": Field("text", "the module (of our families) before which it is built, where that "
                    "is there", required=False),
    "unchecked_blocks": Field("flag", "whether a rank may hold parts of its weight blocks",
                              required=False),
    "known_as": Field("text", "its prefix, where known_as of the class does not say it",
                      required=False),
    "leaves": Field("list", "the only leaves that it has", required=False,
                    of=Field("text", "a leaf")),
    "rules": Field("list", "what its class does besides: says_heads or says_kv_heads where ranks "
                   "do not divide these; whole_heads asserts that they divide num_attention_heads, "
                   "whole_head_size that these divide hidden_size, mamba1_ranks that ranks divide "
                   "a mixer's intermediate size", required=False,
                   of=Field("text", "a rule", choices=(
                       "says_heads", "says_kv_heads", "whole_heads", "whole_head_size",
                       "mamba1_ranks"))),
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
    "alone": Field("flag", "only where no tokens are exchanged between experts", required=False),
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
    "exchanged": Field("flag", "the pass chooses where tokens are exchanged too", required=False),
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
    "nulled": Field("text", "only where this field of the language model's config is null",
                  required=False),
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

ACTIVATIONS: Row = {
    "id": Field("text", "our name"),
    "field": Field("text", "the field of the language model's config"),
    "takes": Field("list", "its values with which a model starts", of=Field("text", "a value")),
    "type": Field("text", "the exception with others"),
    "message": Field("text", "the engine's words; {value} is the field's value"),
    "hint": Field("text", "what the user can do"),
    "classes": Field("list", "which classes ask, and where", of={
        "architectures": Field("list", "model classes", of=Field("text", "an architecture")),
        "before": Field("list", "modules before which the start ends", required=False,
                        of=Field("text", "a path")),
        "after": Field("list", "modules after which it ends", required=False,
                       of=Field("text", "a path")),
        "source": Field("text", "engine file:symbol"),
    }),
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
