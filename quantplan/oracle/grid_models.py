"""The models of generated questions: those that the tables know, with few layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from quantplan.dispatch.bundled import bundled_models
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.oracle.draw import Draw, put
from quantplan.oracle.grid_rows import grid_rows
from quantplan.tables.errors import QuantplanError
from quantplan.tables.family_loading import families_by_architecture
from quantplan.tables.load import read_table
from quantplan.tables.versions import default_version

FEWEST_LAYERS = 2
FEWEST_PATTERN_LAYERS = 4
"""Layers of a model whose layers are of several kinds."""

LAYER_LIST = "layers_block_type"
"""A list of the layers' kinds that stands for num_hidden_layers in newer Nemotron-H configs."""

PER_KIND = ("first_k_dense_replace", "num_hash_layers", "max_window_layers")
"""Config fields that count the layers of a kind: one of them stays."""


@cache
def grid_models(engine: str = "vllm") -> Mapping[str, tuple[Mapping[str, Any], ...]]:
    """Return architecture -> configs, cut, of every model class that the engine's table answers for
    and that has an example."""
    known = answered_for(engine)
    examples = [*(row["config"] for row in bundled_models()),
                *(row["config"] for row in grid_rows(engine)["models"])]
    found: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for config in examples:
        architecture = config["architectures"][0]
        if architecture in known:
            found[architecture] = (*found.get(architecture, ()), cut(config))
    return found


def answered_for(engine: str) -> frozenset[str]:
    """Return the model classes with a family that the engine's table has, where it lists any."""
    known = frozenset(families_by_architecture())
    table = read_table(f"engines/{engine}/{default_version(engine)}")
    own = [name for row in table.get("models", ()) for name in row["architectures"]]
    return known.intersection(own) if own else known


def cut(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with few layers, as its lists and patterns per layer begin."""
    short = deepcopy(dict(config))
    text = text_part(short)
    layers = text.get("num_hidden_layers") or len(text.get(LAYER_LIST) or ())
    if not isinstance(layers, int) or not layers:
        return short
    lists = [name for name, value in text.items()
             if isinstance(value, (list, str)) and len(value) == layers > 1]
    fewest = min(layers, FEWEST_PATTERN_LAYERS if lists else FEWEST_LAYERS)
    if "num_hidden_layers" in text:
        text["num_hidden_layers"] = fewest
    for name in lists:
        text[name] = text[name][:fewest]
    for name in PER_KIND:
        if isinstance(text.get(name), int):
            text[name] = min(text[name], 1)
    return short


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that the language model's sizes are in."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def drawn_model(draw: Draw, engine: str) -> dict[str, Any]:
    """Return a model's config: half of the time as it is, else with up to three fields drawn."""
    models, fields = grid_models(engine), grid_rows(engine)["model_fields"]
    config = deepcopy(dict(draw.one(models[draw.one(sorted(models))])))
    text = text_part(config)
    if draw.chance(0.5):
        for field in draw.some([f for f in fields if f.get("add") or f["at"] in text], 3):
            put(text, field["at"], draw.one(field["values"]))
    return config


class Paths:
    """The module paths of one model, from which names in a quantization config are drawn."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.leaves: list[str] = ["lm_head"]
        self.fused: list[str] = ["lm_head"]
        self.layers: list[str] = ["model.layers.0"]
        try:
            structure = model_structure(Checkpoint("", "grid", config))
        except QuantplanError:  # a config that is refused: its names do not matter
            return
        self.fused, self.leaves = [], []
        self.layers = sorted({m.path.split(".*.")[0] + ".0" for m in structure.modules
                              if m.per_layer})
        for module in structure.modules:
            matrices = [leaf.name for leaf in module.leaves if leaf.k is not None]
            for index in range(structure.num_layers if module.per_layer and matrices else 1):
                if matrices:
                    self.fused.append(module.path.replace("*", str(index), 1))
                    self.leaves += [module.leaf_path(name).replace("*", str(index), 1)
                                    for name in matrices]

    def names(self) -> dict[str, Callable[[Draw], str | None]]:
        """Return placeholder -> how it is drawn."""
        return {
            "leaf": lambda draw: draw.one(self.leaves),
            "fused": lambda draw: draw.one(self.fused),
            "layer": lambda draw: draw.one(self.layers),
            "name": lambda draw: draw.one([*self.leaves, *self.fused]).rsplit(".", 1)[-1],
        }

    def headers(self, stored: Mapping[str, str], plain: float, draw: Draw
                ) -> Iterator[tuple[str, str]]:
        """Yield tensor name and dtype: linear layers of the decoder as `stored`, other modules and
        a share of `plain` of them in 16 bits."""
        for leaf in self.leaves:
            inside = any(leaf.startswith(layer.rsplit(".", 1)[0]) for layer in self.layers)
            parts = stored if inside and not draw.chance(plain) else {"weight": "BF16"}
            for part, dtype in parts.items():
                yield f"{leaf}.{part}", dtype
