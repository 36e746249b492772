"""Experts whose products are layers of their own, each whole on the rank that holds it
(models/mixtral_quant.py:MixtralMoE)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.structure import Leaf, Module, Structure
from quantplan.dispatch.trace import refuse

SOURCE = "models/mixtral_quant.py:MixtralMoE.__init__"
INNER = 1
"""Which of an expert's layers takes the intermediate size."""


def with_single_experts(structure: Structure, row: Mapping[str, Any], ranks: int) -> Structure:
    """Return the structure whose routed experts are the layers of those that rank 0 holds, where
    the model class' row says so; refuses more ranks than experts."""
    layers = row.get("single_experts")
    if layers is None:
        return structure
    return structure._replace(modules=tuple(
        made for module in structure.modules
        for made in (_layers(module, layers, ranks) if module.facts.get("experts") else (module,))))


def _layers(module: Module, names: list[str], ranks: int) -> Iterator[Module]:
    number, hidden = module.facts["experts"], module.facts["hidden"]
    inner = module.facts["intermediate"]
    if ranks > number:
        raise refuse("shapes under TP", "ValueError", f"Tensor parallel size {ranks} is greater "
                     f"than the number of experts {number}.", module.path_at(0), SOURCE,
                     hint="Use fewer ranks.")
    for expert in range(-(-number // ranks)):
        for place, name in enumerate(names):
            n, k = (hidden, inner) if place == INNER else (inner, hidden)
            path = f"{module.path}.{expert}.{name}"
            yield module._replace(path=path, known_as=path, kind="linear", split="replicated",
                                  leaves=(Leaf(name, n, k),), parts=(n,), facts={})
