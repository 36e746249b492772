"""MIXED_PRECISION: the algorithm of each layer, as quantized_layers names it
(model_executor/layers/quantization/modelopt.py:ModelOptMixedPrecisionConfig)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Table
from quantplan.dispatch.vllm.fields import Config, bad_config
from quantplan.dispatch.vllm.ignore import Packed
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

SOURCE = "model_executor/layers/quantization/modelopt.py:ModelOptMixedPrecisionConfig"
GROUP_SIZE = 16
BLOCK_SIZE = 128
NVFP4 = ("NVFP4", "W4A16_NVFP4")
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Fused names that are looked up by their parts even where the model class does not say so."""


class Mixed(NamedTuple):
    """`layers` maps a module path to its algorithm in capitals, `below` a path to that of the first
    module under it; `group_size` is that of NVFP4, `block_size` that of block-FP8 experts."""

    layers: Mapping[str, str]
    below: Mapping[str, str]
    group_size: int
    block_size: int

    def renamed(self, new: Callable[[str], str]) -> Mixed:
        """Return the layers under the engine's names
        (ModelOptMixedPrecisionConfig.apply_vllm_mapper)."""
        layers = {new(path): algo for path, algo in self.layers.items()}
        return self._replace(layers=layers, below=_first_below(layers))


def read_mixed(table: Table, config: Config, group_size: int | None) -> Mixed:
    """Return the layers of a MIXED_PRECISION config, or refuse as its constructor does."""
    layers = config.get("quantization", config).get("quantized_layers", {})
    if not layers:
        raise bad_config("MIXED_PRECISION quant_algo requires a non-empty 'quantized_layers' "
                         "mapping in the quantization config.", SOURCE)
    algos = {path: _algo(path, recipe) for path, recipe in _recipes(layers)}
    if group_size is None:
        group_size = next((_size(recipe, GROUP_SIZE) for path, recipe in layers.items()
                           if algos[path] in NVFP4), GROUP_SIZE)
    _check_codecs(table, layers, algos)
    return Mixed(algos, _first_below(algos), group_size, _block_size(table, layers, algos))


def _first_below(algos: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, algo in algos.items():
        parent, _, _ = path.rpartition(".")
        while parent and parent not in found:
            found[parent] = algo
            parent, _, _ = parent.rpartition(".")
    return found


def _recipes(layers: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(layers, Mapping):
        raise CheckpointError("quantization config: quantized_layers", wanted="an object",
                              found=repr(layers)[:60])
    for path, recipe in layers.items():
        if not isinstance(recipe, Mapping):
            raise CheckpointError(f"quantization config: quantized_layers: {path}",
                                  wanted="an object", found=repr(recipe)[:60])
        yield path, recipe


def _algo(path: str, recipe: Mapping[str, Any]) -> str:
    algo = recipe.get("quant_algo")
    if not isinstance(algo, str):
        raise CheckpointError(f"quantization config: quantized_layers: {path}: quant_algo",
                              wanted="text", found=repr(algo)[:60])
    return algo.upper()


def _size(recipe: Mapping[str, Any], default: int) -> int:
    value = recipe.get("group_size", default)
    if not isinstance(value, int):
        raise CheckpointError("quantization config: quantized_layers: group_size",
                              wanted="a whole number", found=repr(value)[:60])
    return value


def _check_codecs(
    table: Table, layers: Mapping[str, Mapping[str, Any]], algos: Mapping[str, str]
) -> None:
    codecs = {row["id"]: row for row in table["modelopt"]["codecs"]}
    for path, recipe in layers.items():
        codec = codecs.get(algos[path].lower())
        if codec is not None and (recipe.get("group_size"), recipe.get("block_payload_bytes"),
                                  recipe.get("packing")) != (codec["block"], codec["bytes"],
                                                             "ggml"):
            raise bad_config(f"unsupported {algos[path]} block contract for {path}: {recipe}",
                             SOURCE)


def _block_size(
    table: Table, layers: Mapping[str, Mapping[str, Any]], algos: Mapping[str, str]
) -> int:
    blocked = table["modelopt"]["block_algos"]
    sizes = {_size(recipe, BLOCK_SIZE) for path, recipe in layers.items()
             if algos[path] in blocked}
    if len(sizes) > 1:
        raise bad_config("MIXED_PRECISION currently requires all block-FP8 MoE layers to use one "
                         f"group_size, got {sorted(sizes)}.", SOURCE)
    return next(iter(sizes), BLOCK_SIZE)


def mixed_algo(mixed: Mixed, path: str, packed: Packed) -> str | None:
    """Return the algorithm of a layer, linear or experts: its own entry, that of its fused parts,
    or the first one below it; None when nothing names it. Refuses parts that disagree."""
    own = next((mixed.layers[c] for c in _candidates(path) if c in mixed.layers), None)
    return (own or _of_parts(mixed, path, packed.get(_name(path), ()))
            or _below(mixed, path) or _of_parts(mixed, path, FUSED.get(_name(path), ())))


def _name(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def _candidates(path: str) -> list[str]:
    """Return the spellings under which a path is looked up."""
    found = [path]
    if path.endswith(".lm_head"):
        found.append("lm_head")
    for here, there in (("language_model.model.", "model.language_model."),
                        ("model.language_model.", "language_model.model.")):
        if path.startswith(here):
            found.append(there + path[len(here):])
            break
    return found


def _of_parts(mixed: Mixed, path: str, parts: Any) -> str | None:
    base = path.rsplit(".", 1)[0]
    found = {mixed.layers[name] for candidate in _candidates(base) for part in parts
             if (name := f"{candidate}.{part}") in mixed.layers}
    if len(found) > 1:
        shown = "{" + ", ".join(repr(algo) for algo in sorted(found)) + "}"
        raise refuse("layer assignment", "ValueError",
                     f"Mixed quant_algo within fused layer {path}: {shown}. All shards must use "
                     "the same quantization.", path, f"{SOURCE}._resolve_quant_algo",
                     hint="Give every part of the fused layer one quant_algo.")
    return found.pop() if found else None


def _below(mixed: Mixed, path: str) -> str | None:
    """Return the algorithm of the first module under a path; experts may be named as children of
    their parent."""
    above = [path.rsplit(".experts", 1)[0]] if path.endswith(".experts") else []
    return next((mixed.below[place] for place in (*_candidates(path), *above)
                 if place in mixed.below), None)
