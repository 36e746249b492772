"""The schema of an engine's method names: the registry, what becomes of a name, the classes that
serve it."""

from __future__ import annotations

from quantplan.tables.schema import Field, Row

CONFIG_CLASS: Row = {
    "id": Field("text", "the engine's class name"),
    "min_capability": Field("int", "get_min_capability(), as capability x 10"),
    "dtypes": Field("list", "get_supported_act_dtypes(), in the engine's order",
                    of=Field("text", "a torch dtype")),
    "kv_method": Field("text", "the KV-cache method it attaches", required=False),
    "kv_kinds": Field("list", "the kinds of attention it attaches that to", required=False,
                      of=Field("text", "a kind", choices=("attention", "mla"))),
    "files": Field("list", "get_config_filenames(): files that it reads where config.json has no "
                   "config", required=False, of=Field("text", "a file name")),
    "no_checkpoint": Field("row", "what happens when --quantization asks for it and the "
                           "checkpoint has no quantization config", required=False, of={
                               "type": Field("text", "exception type"),
                               "message": Field("text", "the engine's words; {name} is filled"),
                           }),
    "from_checkpoint": Field("row", "the error of a checkpoint that names it as its own method",
                             required=False, of={
                                 "type": Field("text", "exception type"),
                                 "message": Field("text", "the engine's words"),
                             }),
    "renamed": Field("map", "fields of dispatch/vllm whose names apply_vllm_mapper makes the "
                     "engine's -> names, or paths when class names and re: stay", required=False,
                     of=Field("text", "what they hold", choices=("names", "paths"))),
    "resolves": Field("text", "the module of dispatch/vllm that answers for it; absent: "
                      "the table does not cover it", required=False,
                      choices=("fp8", "awq", "gptq", "moe_wna16", "compressed_tensors", "online",
                               "modelopt", "quark", "inc", "humming", "torchao", "fbgemm",
                               "fp_quant", "deepseek_v4", "experts_only")),
    "source": Field("text", "engine file:symbol"),
}

METHODS: Row = {
    "methods": Field("list", "registered method names, in registry order", of={
        "id": Field("text", "the name"),
        "config_class": Field("text", "the config class that serves it"),
    }),
    "methods_source": Field("text", "engine file:symbol"),
    "deprecated_methods": Field("list", "names behind --allow-deprecated-quantization",
                                of=Field("text", "a method")),
    "overrides": Field("list", "override_quantization_method hooks that can answer, in order",
                       of={
                           "id": Field("text", "the method whose hook it is"),
                           "checkpoint": Field("text", "the checkpoint's quant_method; absent: "
                                               "any", required=False),
                           "begins": Field("flag", "the quant_method only begins with it",
                                           required=False),
                           "requested": Field("list", "--quantization values it accepts; none "
                                              "stands for not given; absent: any",
                                              required=False, of=Field("text", "a name")),
                           "model_types": Field("list", "model_type of config.json; absent: any",
                                                required=False, of=Field("text", "a type")),
                           "algo": Field("text", "the ModelOpt quant_algo", required=False),
                           "algo_holds": Field("text", "a part of the ModelOpt quant_algo",
                                               required=False),
                           "compatible": Field("text", "the module of dispatch/vllm whose rule "
                                               "the config must also pass", required=False,
                                               choices=("moe_wna16",)),
                           "answer": Field("text", "the method it answers", required=False),
                           "raises": Field("text", "the words of the ValueError that it raises "
                                           "instead", required=False),
                           "source": Field("text", "engine file:symbol"),
                       }),
    "overrides_source": Field("text", "engine file:symbol"),
    "rewrites": Field("list", "what a model class makes of the checkpoint's quant_method", of={
        "id": Field("text", "short name"),
        "architectures": Field("list", "the model classes", of=Field("text", "a class name")),
        "model_types": Field("list", "model_type of config.json; absent: any", required=False,
                             of=Field("text", "a type")),
        "checkpoint": Field("text", "the quant_method it rewrites"),
        "format": Field("text", "and the format that goes with it; absent: any", required=False),
        "becomes": Field("text", "the quant_method it writes"),
        "late": Field("flag", "for the config class alone: the hooks are asked with the "
                      "checkpoint's", required=False),
        "source": Field("text", "engine file:symbol"),
    }),
    "producers": Field("row", "configs whose producer, not their quant_method, names the method",
                       of={
                           "name": Field("text", "producer.name"),
                           "legacy": Field("text", "the field of `quantization` that older files "
                                           "have instead"),
                           "algos": Field("map", "quant_algo -> the quant_method it stands for",
                                          of=Field("text", "a method")),
                           "unknown": Field("text", "the error of another quant_algo; {algo} is "
                                            "filled in"),
                           "source": Field("text", "engine file:symbol"),
                       }),
    "unknown_method": Field("text", "the error of a name that is not registered; {name} and "
                            "{methods} are filled in"),
    "moved_methods": Field("list", "names that older versions served, and what to do instead", of={
        "id": Field("text", "the name"),
        "hint": Field("text", "what to do instead"),
    }),
    "config_classes": Field("list", "quantization config classes", of=CONFIG_CLASS),
    "refused_methods": Field("list", "config classes with which some model classes are not built",
                             of={
                                 "id": Field("text", "short name"),
                                 "models": Field("text", "a part of the file of the model classes"),
                                 "config_classes": Field("list", "the config classes",
                                                         of=Field("text", "a class")),
                                 "type": Field("text", "exception type"),
                                 "message": Field("text", "the engine's words"),
                                 "source": Field("text", "engine file:symbol"),
                             }),
}
