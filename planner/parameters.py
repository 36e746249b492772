"""Every tensor that the engine creates for one rank's model, layer by layer in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quantplan.dispatch.formats import can_be_quantized, is_head, is_left_out, is_quantized
from quantplan.dispatch.structure import Module, Structure
from quantplan.dispatch.weight_format import WeightFormat
from quantplan.planner.cuts import Cut, cut_leaves
from quantplan.planner.experts import Spread, expert_tensors
from quantplan.planner.parts import Part, format_parts, plain_parts
from quantplan.planner.stages import WHOLE, Stage
from quantplan.tables.record import NamedTuple

Quantized = Callable[[str, int], bool]


class Created(NamedTuple):
    """One tensor of an engine layer on one rank; `whole` says that one number covers it."""

    holds: str
    values: int
    bits: int
    whole: bool = False

    @property
    def bytes(self) -> int:
        """Return its bytes."""
        return -(-self.values * self.bits // 8)


class RankLayer(NamedTuple):
    """One engine layer with weights of its own, or attention, which has scales only: `layer` is
    None outside of decoder layers, n and k are the rank's fused outputs and inputs."""

    module: Module
    layer: int | None
    quantized: bool
    n: int
    k: int
    tensors: tuple[Created, ...]

    @property
    def path(self) -> str:
        """Return its path in the engine's model."""
        return self.module.path_at(self.layer)


def rank_layers(  # noqa: PLR0917 - what weigh_sizes takes, and a stage
    structure: Structure, weights: WeightFormat | None, tp: int, dtype: str,
    quantized: Quantized | None = None, stage: Stage = WHOLE,
) -> Iterator[RankLayer]:
    """Yield the layers of one rank of a pipeline stage, in the order in which the engine builds
    them.

    `quantized` is as in planner.weights.weigh. Raises UsageError for a layer that does not divide.
    """
    known: dict[tuple[int, bool], tuple[tuple[Created, ...], list[Cut]]] = {}
    for module, layer in structure.sites():
        if not stage.holds(structure, module, layer):
            continue
        if module.kind == "experts" or not is_left_out(module, structure):
            packed = _is_quantized(module, layer, weights, quantized)
            key = id(module), packed
            if key not in known:
                known[key] = _tensors(module, weights if packed else None, tp, dtype)
            tensors, cuts = known[key]
            n = sum(cut.n_rank for cut in cuts)
            yield RankLayer(module, layer, packed, n, cuts[0].k_rank, tensors)
        elif module.kind == "attention":
            yield RankLayer(module, layer, False, 0, 0, ())


def _is_quantized(
    module: Module, layer: int | None, weights: WeightFormat | None, quantized: Quantized | None
) -> bool:
    if weights is None or not (can_be_quantized(module) or is_head(module)):
        return False
    if quantized is None:
        return is_quantized(module, weights)
    return quantized(module.path, layer or 0)


def _tensors(
    module: Module, weights: WeightFormat | None, tp: int, dtype: str
) -> tuple[tuple[Created, ...], list[Cut]]:
    """Return the tensors of a fused layer: those of its checkpoint modules, one after another in
    each, and its cuts. Routed experts are two such stacks."""
    if module.kind != "experts":
        cuts = cut_leaves(module, tp)
        return tuple(_stack(module, cuts, weights, dtype)), cuts
    stacks = list(expert_tensors(module, Spread(tp), weights.group if weights else -1))
    return (tuple(tensor for stack, cuts in stacks
                  for tensor in _stack(stack, cuts, weights, dtype)), stacks[0][1])


def _stack(
    module: Module, cuts: list[Cut], weights: WeightFormat | None, dtype: str
) -> Iterator[Created]:
    fused: dict[str, list[tuple[Part, int]]] = {}
    for position, cut in enumerate(cuts):
        parts = (plain_parts(module, module.leaves[position], dtype) if weights is None
                 else format_parts(weights, module, position, dtype))
        for part in parts:
            fused.setdefault(part.name, []).append((part, part.rank_values(cut, module.path)))
    return (_fused(found) for found in fused.values())


def _fused(found: list[tuple[Part, int]]) -> Created:
    part = found[0][0]
    return Created(part.holds, sum(values for _, values in found), part.bits,
                   whole=not set(part.dims) - {"1", "2"})
