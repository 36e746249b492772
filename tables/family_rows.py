"""The schema of model families."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

LEAF: Row = {
    "name": Field("text", "last part of the checkpoint's module name"),
    "n": Field("text", "output features: the name of a size of the model"),
    "k": Field("text", "input features, likewise; absent for one-dimensional weights",
               required=False),
}

_NAMES = Field("list", "names of sizes, or numbers", required=False,
               of=Field("scalar", "a size's name or a number"))

SIZE: Row = {
    "id": Field("text", "the size's name; a later row of the same name replaces an earlier one"),
    "fields": Field("list", "config fields, the first that is present and not null counts",
                    required=False, of=Field("text", "a field")),
    "from": Field("list", "where the fields stand when not at the family's own place",
                  required=False, of=Field("text", "a key of config.json")),
    "within": Field("text", "the object of the family's own place that holds the fields, if it is "
                    "there", required=False),
    "default": Field("int", "value when no field is present", required=False),
    "default_by_type": Field("map", "model_type -> that value", required=False,
                             of=Field("int", "the value")),
    "default_size": Field("text", "name of the size that stands in then", required=False),
    "flag": Field("flag", "the fields are true or false and count as 1 or 0", required=False),
    "optional": Field("flag", "absent fields leave the size out; rows ask with has and lacks",
                      required=False),
    "depth_of": Field("text", "the fields hold the index of a layer, or of several, of as many as "
                      "the size of this name says; the size counts the layers up to the deepest: "
                      "a negative index i is layer count + i + 1, another one is layer i + beyond",
                      required=False),
    "same": Field("flag", "the field may list one number per layer, all of which are the same",
                  required=False),
    "single": Field("flag", "several indices are not known", required=False),
    "says": Field("map", "text of the field -> the size; another text is not known",
                  required=False, of=Field("int", "the size")),
    "beyond": Field("int", "what depth_of adds to an index that is not negative; absent: 0",
                    required=False),
    "zero": Field("flag", "0 is a size that the engine serves", required=False),
    "listed": Field("flag", "the field is a list: the size is its length", required=False),
    "product": _NAMES,
    "sum": _NAMES,
    "quotient": _NAMES,
    "rounded": _NAMES,
    "length": Field("list", "config fields, the first that is present: its entries are counted",
                    required=False, of=Field("text", "a field")),
    "each": Field("text", "a rule of dispatch/layer_sizes.py: it names one value per layer, or "
                  "none", required=False),
    "at": Field("text", "layer kind that the row is for", required=False),
    "source": Field("text", "engine or config class that says so", required=False),
}

LAYER_KINDS: Row = {
    "rule": Field("text", "a rule of dispatch/layer_kinds.py: it names one kind per layer"),
    "fields": Field("map", "the rule's word -> config field, or fields of which the first that is "
                    "present and not null counts", required=False,
                    of=Field("any", "a field or fields")),
    "defaults": Field("map", "the rule's word -> value when the config does not say",
                      required=False, of=Field("any", "a value")),
    "kinds": Field("map", "the rule's word -> layer kind", required=False,
                   of=Field("text", "a kind")),
    "source": Field("text", "engine file and symbol", required=False),
}

STACK: Row = {
    "id": Field("text", "name; text is the language model's"),
    "count": Field("text", "size that counts its layers"),
    "layer_kinds": Field("list", "what kinds of layers it has; every rule names one kind for "
                         "each layer", required=False, of=LAYER_KINDS),
}

MODULE: Row = {
    "path": Field("text", "engine module path; * stands for the layer index"),
    "module": Field("text", "the engine's module class"),
    "known_from": Field("text", "size that the layer index in known_as starts from",
                        required=False),
    "known_as": Field("text", "the name that the engine gives it (its prefix), by which "
                      "quantization configs and error texts know it; absent: the path, of "
                      "experts without routed_experts", required=False),
    "kind": Field("text", "what it is; absent: linear", required=False,
                  choices=("linear", "embedding", "attention", "mla", "experts", "norm", "part",
                           "tensor", "copy")),
    "split": Field("text", "how tensor parallelism splits it", required=False,
                   choices=("column", "row", "qkv", "qkv_index", "vocab", "none")),
    "stack": Field("text", "the stack of layers it stands in; absent: text", required=False),
    "at": Field("list", "layer kinds that a layer must have to hold it", required=False,
                of=Field("text", "a kind")),
    "only": Field("text", "present only in families with this feature", required=False),
    "has": Field("text", "present only when this size is there and not zero", required=False),
    "lacks": Field("text", "present only when this size is absent or zero", required=False),
    "times": Field("text", "size that counts how often it stands there; # in the path and in "
                   "known_as is the number", required=False),
    "quantized_when": Field("row", "sizes that must be multiples of a number: otherwise it is "
                            "built without the quantization config", required=False, of={
                                "sizes": Field("list", "sizes", of=Field("text", "a size")),
                                "multiple_of": Field("int", "the number"),
                                "except": Field("list", "config classes that quantize it even so",
                                                required=False, of=Field("text", "a class")),
                                "source": Field("text", "engine file and symbol"),
                            }),
    "bias": Field("text", "which of the family's bias rules applies", required=False),
    "bias_when": Field("text", "size that is not zero where it has a bias, instead of a rule",
                       required=False),
    "quantized": Field("flag", "false: built without the quantization config", required=False),
    "plain_under": Field("list", "config classes that never quantize it", required=False,
                         of=Field("text", "a class")),
    "replicated_under": Field("list", "config classes under which no rank cuts it",
                              required=False, of=Field("text", "a class")),
    "most_ranks": Field("text", "size: no more ranks than that cut it, and groups of ranks hold "
                        "the same piece", required=False),
    "replicated_unless": Field("text", "size without which no rank cuts it: ranks do not divide it",
                               required=False),
    "known_under": Field("map", "config class -> the name that the engine gives it under that "
                         "class, in the place of known_as", required=False,
                         of=Field("text", "a name")),
    "sequence_parallel": Field("flag", "whether no rank cuts it where the family's experts split "
                               "tokens (--enable-expert-parallel over tensor and data parallel "
                               "ranks)", required=False),
    "dtype": Field("text", "the dtype that the class builds it in, where that is not the model's",
                   required=False),
    "unpacked": Field("flag", "true: its leaves are not in packed_modules_mapping",
                      required=False),
    "leaves": Field("list", "checkpoint modules that it holds, in fused order", required=False,
                    of=LEAF),
    "parts": Field("list", "sizes of its output partitions, where the leaves' are not these",
                   required=False, of=Field("text", "a size")),
    "heads": Field("list", "sizes that count query heads, kv heads, features per head and, where "
                   "they differ, features per value head of a qkv split; absent: the config's",
                   required=False, of=Field("text", "a size")),
    "groups": Field("text", "size that counts the groups of a Mamba mixer: where ranks do not "
                    "divide them, each rank holds a copy of the parts of one group",
                    required=False),
    "per_group": Field("list", "the parts that there is one of per group", required=False,
                       of=Field("text", "a size")),
    "whole": Field("list", "parts of which every rank holds all", required=False,
                   of=Field("text", "a size")),
    "whole_blocks": Field("flag", "true: with weight blocks, the engine pads the size that ranks "
                          "cut so that each holds whole ones", required=False),
    "aligned": Field("int", "the engine pads the outputs of one rank to a multiple of this, with a "
                     "further part", required=False),
    "before": Field("list", "rules of dispatch/vllm/construction.py, of an engine's own families "
                    "of its sites.py, that the class asks before it builds this", required=False,
                    of=Field("text", "a rule")),
    "after": Field("list", "rules that it asks afterwards", required=False,
                   of=Field("text", "a rule")),
    "sizes": Field("map", "facts of the module that are sizes of the model: fact -> size",
                   required=False, of=Field("text", "a size")),
    "reads": Field("map", "facts that the config says: fact -> field", required=False,
                   of=Field("text", "a field")),
    "values": Field("map", "what config values of those facts are to the engine: fact -> value -> "
                    "the engine's", required=False,
                    of=Field("map", "value -> the engine's", of=Field("scalar", "a value"))),
    "equals": Field("map", "facts that are whether a config field has this value", required=False,
                    of={"field": Field("text", "a field"), "value": Field("scalar", "the value")}),
    "facts": Field("map", "facts that the engine's class fixes; those of attention and experts are "
                   "named in module_facts.py", required=False,
                   of=Field("any", "a value")),
}

DEFAULTS: Row = {
    "model_types": Field("list", "the model types that the class serves",
                         of=Field("text", "a model_type")),
    "fields": Field("map", "config field -> value", of=Field("any", "a value")),
    "source": Field("text", "the config class"),
}

PART_DEFAULTS: Row = {
    "part": Field("text", "the key of config.json that holds the part"),
    "model_types": Field("list", "the part's own model types that the class serves; absent: any",
                         required=False, of=Field("text", "a model_type")),
    "unnamed": Field("flag", "it serves a part without a model_type too", required=False),
    "fields": Field("map", "field of the part -> value", of=Field("any", "a value")),
    "absent": Field("map", "what is otherwise where config.json lacks the whole part; absent: the "
                    "engine builds none then", required=False, of=Field("any", "a value")),
    "source": Field("text", "the config class"),
}

REPLACED: Row = {
    "method": Field("text", "the engine's class name"),
    "capabilities": Field("list", "capabilities x 10", of=Field("int", "a capability")),
    "module": Field("text", "the module class whose method it replaces; absent: every linear "
                    "layer's", required=False),
    "dtypes": Field("list", "model dtypes", of=Field("text", "a dtype")),
    "model_types": Field("list", "model types", of=Field("text", "a model_type")),
    "shapes": Field("list", "N x K of one rank", of=Field("text", "a shape such as 2624x6144")),
    "source": Field("text", "engine file and symbol"),
}

FAMILY: Row = {
    "id": Field("text", "short name"),
    "title": Field("text", "what people call it"),
    "engine": Field("text", "the one engine that builds it so; what such a row does not say is as "
                    "in the row of its first architecture that names no engine, where there is "
                    "one", required=False, choices=("sglang",)),
    "skeletons": Field("list", "the module lists that it follows, in the order in which the "
                       "engine builds them", of=Field("text", "a skeleton")),
    "weights": Field("list", "skeletons of the weights that are no layers: with those of its "
                     "layers they are every weight of the model, so that its memory can be "
                     "counted. In a module of kind tensor the path is the tensor's own name; "
                     "one of kind copy is made of another weight after loading",
                     required=False, of=Field("text", "a skeleton")),
    "head_weight": Field("text", "what lm_head's weight is, whatever the config says of tied "
                         "embeddings; absent: as that says", required=False,
                         choices=("own", "embedding")),
    "weight_dtypes": Field("map", "path of a layer -> the dtype of its weight, where that is not "
                           "the model's", required=False, of=Field("text", "a dtype")),
    "kv_heads_said": Field("flag", "whether the class leaves it to its projection to say, in "
                           "words, which key-value heads do not divide over the ranks",
                           required=False),
    "sequence_parallel": Field("flag", "whether its experts can split tokens, not weights, over "
                               "tensor parallel ranks (use_sequence_parallel_moe)",
                               required=False),
    "prefix": Field("text", "what stands before the paths of the text stack", required=False),
    "languages": Field("list", "architectures that the language model may have: its own config "
                       "names one, or the model_type of that does. The skeleton language stands "
                       "for its modules; everything that the language model's family says holds "
                       "for them", required=False, of=Field("text", "an architecture")),
    "language_by": Field("row", "the config field that says which of them, instead",
                         required=False, of={
        "field": Field("text", "a field"),
        "says": Field("map", "text of the field -> architecture",
                      of=Field("text", "an architecture")),
    }),
    "paths": Field("map", "beginning of the language model's paths -> what stands there, where "
                   "that is no prefix", required=False, of=Field("text", "a beginning")),
    "language": Field("text", "the same where the class builds one architecture, whatever the "
                      "config says", required=False),
    "packed_outside": Field("map", "packed_modules_mapping while the towers are built, where it "
                            "is not the language model's (empty: there is none)", required=False,
                            of=Field("list", "leaf names", of=Field("text", "a leaf"))),
    "root": Field("list", "where the part of config.json stands that all of this is about; absent: "
                  "it is the whole", required=False, of=Field("text", "a key of config.json")),
    "config": Field("list", "where the language model's fields stand in config.json",
                    required=False, of=Field("text", "a key of config.json")),
    "defaults": Field("list", "what config classes fill in for absent fields", required=False,
                      of=DEFAULTS),
    "part_defaults": Field("list", "the same of the config classes of parts, as vision_config",
                           required=False, of=PART_DEFAULTS),
    "config_optional": Field("flag", "without that key the fields stand at the top level",
                             required=False),
    "features": Field("list", "optional modules that it has", required=False,
                      of=Field("text", "a feature")),
    "sizes": Field("list", "sizes besides its skeletons'", required=False, of=SIZE),
    "stacks": Field("list", "stacks of layers, where they are not all alike", required=False,
                    of=STACK),
    "replaced": Field("list", "methods that the class puts in the place of those of unquantized "
                      "layers", required=False, of=REPLACED),
    "packed": Field("map", "packed_modules_mapping where it says more than the leaves",
                    required=False, of=Field("list", "leaf names", of=Field("text", "a leaf"))),
    "packed_if": Field("map", "fused name -> config field without which it is not in "
                       "packed_modules_mapping", required=False, of=Field("text", "a field")),
    "even_heads": Field("list", "model types whose config class wants an even head_dim",
                        required=False, of=Field("text", "a model_type")),
    "built_last": Field("list", "kinds of modules that the engine builds for all layers after it "
                        "built the layers' other modules", required=False,
                        of=Field("text", "a kind")),
    "embedding": Field("text", "how the engine builds the embedding: unnamed, with the "
                       "quantization config but without its path; plain, without either; absent: "
                       "with both", required=False, choices=("unnamed", "plain")),
    "head": Field("text", "how the engine builds lm_head: plain, without the quantization config; "
                  "absent: with it", required=False, choices=("plain",)),
    "hidden_act": Field("list", "activations that the engine class accepts; absent: any",
                        required=False, of=Field("text", "an activation")),
    "act_field": Field("text", "the config field that names it; absent: hidden_act",
                       required=False),
    "act_says": Field("text", "what the class says that it computes only, where that is not silu",
                      required=False),
    "architectures": Field("list", "names in config.json architectures",
                           of=Field("text", "an architecture")),
    "model_types": Field("map", "model_type -> architecture, used when the config names none",
                         required=False, of=Field("text", "an architecture")),
    "biases": Field("map", "bias rule -> config fields any of which being true gives a bias; "
                    "always means a bias in every model", required=False,
                    of=Field("list", "config fields", of=Field("text", "a field"))),
    "bias_fields": Field("map", "bias rule -> config field that decides it alone when present",
                         required=False, of=Field("text", "a field")),
    "default_windows": Field("map", "model_type -> sliding window in tokens when the config does "
                             "not say", required=False, of=Field("int", "tokens")),
    "window_flag": Field("text", "config field without which sliding_window is not used",
                         required=False),
    "max_window_layers": Field("int", "default of the config field of that name: the first layer "
                               "with a window; absent where every layer has it", required=False),
    "alternate_windows": Field("int", "default of max_window_layers where every other layer before "
                               "it has the window and none from it on", required=False),
    "renames": Field("list", "the class' hf_to_vllm_mapper, and those of the classes inside it",
                     required=False, of={
                         rule: Field("map", f"{what} -> what stands there in the engine",
                                     required=False, of=Field("text", "the engine's"))
                         for rule, what in (("regex", "expression"), ("substr", "part of a name"),
                                            ("prefix", "beginning"), ("suffix", "end"))}),
    "mapper": Field("flag", "false: the class has no hf_to_vllm_mapper at all, so that names of a "
                    "quantization config stay as they are", required=False),
    "not_covered": Field("map", "config fields that, when set, add what has no rows here -> what",
                         required=False, of=Field("text", "what they add")),
    "complete": Field("flag", "every weight of the model is a leaf: its memory can be counted",
                      required=False),
    "source": Field("text", "engine version, file and class"),
    "defaults_source": Field("text", "where the defaults are from: the config class",
                             required=False),
}

FAMILY_DOCUMENT: Row = {
    "skeletons": Field("list", "module lists shared by families", required=False, of={
        "id": Field("text", "short name"),
        "sizes_of": Field("text", "the skeleton whose sizes it has too", required=False),
        "sizes": Field("list", "sizes of the model, in the order in which they are worked out",
                       required=False, of=SIZE),
        "modules": Field("list", "modules in the order in which the engine builds them",
                         of=MODULE),
    }),
    "families": Field("list", "families", required=False, of=FAMILY),
}
