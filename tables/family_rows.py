"""The schema of model families, and their loading keyed by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from quantplan.tables.load import read_table, table_names
from quantplan.tables.schema import Field, Row

LEAF: Row = {
    "name": Field("text", "last part of the checkpoint's module name"),
    "n": Field("text", "output features: the name of a size of the model"),
    "k": Field("text", "input features, likewise; absent for one-dimensional weights",
               required=False),
}

MODULE: Row = {
    "path": Field("text", "engine module path; * stands for the layer index"),
    "module": Field("text", "the engine's module class"),
    "split": Field("text", "how tensor parallelism splits it",
                   choices=("column", "row", "qkv", "vocab", "none")),
    "bias": Field("text", "which of the family's bias rules applies", required=False,
                  choices=("qkv", "o", "mlp")),
    "only": Field("text", "present only in families with this feature", required=False),
    "leaves": Field("list", "checkpoint modules that it holds, in fused order", of=LEAF),
}

FAMILY: Row = {
    "id": Field("text", "short name"),
    "title": Field("text", "what people call it"),
    "skeleton": Field("text", "the module list that it follows"),
    "features": Field("list", "optional modules that it has", required=False,
                      of=Field("text", "a feature")),
    "head_dim": Field("text", "config_or_derived: head_dim, else hidden_size / heads; derived: "
                      "always hidden_size / heads", choices=("config_or_derived", "derived")),
    "whole_heads": Field("list", "model types whose config class wants hidden_size to be a "
                         "multiple of the heads; others round down", required=False,
                         of=Field("text", "a model_type")),
    "even_heads": Field("list", "model types whose config class wants an even head_dim",
                        required=False, of=Field("text", "a model_type")),
    "default_head_dim": Field("int", "head_dim when the config does not say", required=False),
    "hidden_act": Field("list", "activations that the engine class accepts",
                        of=Field("text", "an activation")),
    "architectures": Field("list", "names in config.json architectures",
                           of=Field("text", "an architecture")),
    "model_types": Field("map", "model_type -> architecture, used when the config names none",
                         of=Field("text", "an architecture")),
    "biases": Field("map", "bias rule -> config fields any of which being true gives a bias; "
                    "always means a bias in every model",
                    of=Field("list", "config fields", of=Field("text", "a field"))),
    "default_windows": Field("map", "model_type -> sliding window in tokens when the config does "
                             "not say", required=False, of=Field("int", "tokens")),
    "default_kv_heads": Field("map", "model_type -> num_key_value_heads when the config has no "
                              "such field; others have one per query head", required=False,
                              of=Field("int", "heads")),
    "window_flag": Field("text", "config field without which sliding_window is not used",
                         required=False),
    "max_window_layers": Field("int", "default of the config field of that name: the first layer "
                               "with a window; absent where every layer has it", required=False),
    "bias_fields": Field("map", "bias rule -> config field that decides it alone when present",
                         required=False, of=Field("text", "a field")),
    "source": Field("text", "engine version, file and class"),
    "defaults_source": Field("text", "where the defaults are from: the config class",
                             required=False),
}

FAMILY_DOCUMENT: Row = {
    "skeletons": Field("list", "module lists shared by families", of={
        "id": Field("text", "short name"),
        "modules": Field("list", "modules in the order in which the engine builds them",
                         of=MODULE),
    }),
    "families": Field("list", "families", of=FAMILY),
}


@cache
def families_by_architecture() -> Mapping[str, Mapping[str, Any]]:
    """Return architecture -> family row, whose `modules` are its skeleton's, features applied."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in table_names():
        if name.startswith("families/"):
            document = read_table(name)
            skeletons = {s["id"]: s["modules"] for s in document["skeletons"]}
            for family in document["families"]:
                modules = _modules(family, skeletons[family["skeleton"]])
                for architecture in family["architectures"]:
                    found[architecture] = {**family, "modules": modules}
    return found


def _modules(family: Mapping[str, Any], modules: list[Any]) -> list[Any]:
    features = (None, *family.get("features", ()))
    return [module for module in modules if module.get("only") in features]
