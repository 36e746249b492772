"""The headers that the engine is shown where a case has none: what our answer takes them to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.structure import Module, Structure
from quantplan.tables.errors import QuantplanError

READ_HEADERS = ("awq", "gptq")
"""Methods whose config class looks into the headers, and takes every layer where there are none."""


def assumed_headers(config: Mapping[str, Any]) -> dict[str, str] | None:
    """Return {tensor: dtype} of a checkpoint whose routers we take to be stored in 16 bits and the
    layers around them quantized; None where nothing is taken for granted, or the model class
    renames what is stored."""
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
    if method not in READ_HEADERS:
        return None
    try:
        structure = model_structure(Checkpoint("", "config", config))
    except QuantplanError:
        return None
    if structure.renames or not structure.routers():
        return None
    return dict(_tensors(structure))


def _tensors(structure: Structure) -> Iterator[tuple[str, str]]:
    routers = set(structure.routers())
    for module in structure.modules:
        for index in module.layers or ():
            if module.path_at(index) in routers:
                yield f"{module.path_at(index)}.weight", "BF16"
            elif module.kind in ("linear", "experts"):
                yield from ((f"{name}.qweight", "I32") for name in _names(module, index))


def _names(module: Module, index: int) -> Iterator[str]:
    if module.kind == "experts":
        yield f"{module.known_at(index)}.0.down_proj"
    for leaf in module.leaves:
        yield module.leaf_path(leaf.name).replace("*", str(index), 1)
