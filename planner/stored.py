"""Weight bytes from the safetensors headers: each tensor goes to the layer that loads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from quantplan.dispatch.facts import Checkpoint, Note, Tensor
from quantplan.dispatch.formats import is_quantized
from quantplan.dispatch.renames import rename
from quantplan.dispatch.structure import TENSORS, Module, Structure
from quantplan.dispatch.weight_format import WeightFormat, read_format
from quantplan.planner.bill import Bill
from quantplan.planner.cuts import Cut
from quantplan.planner.parts import (
    PLAIN_DTYPES,
    Part,
    dtype_bits,
    format_parts,
    not_weights,
    plain_parts,
    stored_parts,
)
from quantplan.planner.stages import WHOLE, Stage
from quantplan.planner.weights import HEADERS, Weights, cut_modules, format_title
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Tensors = dict[str, Tensor]
Stored = tuple[tuple[str, Tensor], ...]


def weigh_stored(
    checkpoint: Checkpoint, structure: Structure, tp: int, dtype: str, stage: Stage = WHOLE
) -> Weights:
    """Return the weights of a stage's rank 0 from headers that have shapes.

    A module without tensors is counted from the config's sizes and noted; tensors that no layer of
    the engine loads are noted and not counted.
    """
    weights, title, gap = _format(checkpoint, dtype)
    by_module = _by_module(checkpoint.tensors or {}, structure)
    experts = _experts_taken(by_module, structure)
    bill, missing = Bill(structure.source), 0
    group = weights.group if weights else -1
    # Tensors first: the biases among them stand in modules that have none for the engine's tables.
    for module, layers, cuts in sorted(cut_modules(structure, tp, stage, group=group), key=_rank):
        for position, cut in enumerate(cuts):
            if module.kind == "experts":
                _add_experts(bill, module, position, cut,
                             Experts(experts, layers, weights, gap, dtype))
                continue
            for stored, times in _distinct(by_module, module, position, layers).items():
                if not stored and gap is not None and module.kind != "copy":
                    raise gap
                missing += 0 if stored or module.kind == "copy" else times
                parts = (stored_parts(dict(stored), weights, module, position,
                                      serving=dtype, tp=tp)
                         if stored else _expected(module, position, weights, dtype))
                for part in parts:
                    bill.add(module, cut, part, times)
    notes = (*_missing(missing), *(_unclaimed(by_module, structure) if stage == WHOLE else ()))
    return Weights(bill.lines(), title, HEADERS, notes)


def _format(
    checkpoint: Checkpoint, dtype: str
) -> tuple[WeightFormat | None, str, NotKnownError | None]:
    """Return the format, its title, and the refusal to repeat if a module has no tensors."""
    try:
        weights = read_format(checkpoint.served_config)
    except NotKnownError as error:
        return None, f"{error.what.removeprefix('weight format: ')}, as stored", error
    return weights, format_title(weights, dtype), None


def _by_module(
    tensors: Mapping[str, Tensor], structure: Structure
) -> dict[str, Tensors]:
    """Return {module path as the engine names it: {last part of the name: tensor}}."""
    found: dict[str, Tensors] = {}
    for stored, tensor in tensors.items():
        name = rename(stored, structure.renames) if structure.renames else stored
        module, _, last = name.rpartition(".")
        found.setdefault(module, {})[last] = tensor
    return found


def _rank(found: tuple[Module, tuple[int, ...], list[Cut]]) -> bool:
    return found[0].kind not in TENSORS


class Experts(NamedTuple):
    """The dtypes of stored experts by their path, and what the format is of those in `layers`."""

    stored: Mapping[str, set[str]]
    layers: tuple[int, ...]
    weights: WeightFormat | None
    gap: NotKnownError | None
    serving: str


def _experts_taken(
    by_module: dict[str, Tensors], structure: Structure
) -> dict[str, set[str]]:
    """Take the tensors of routed experts out of `by_module`; return path -> their dtypes."""
    found: dict[str, set[str]] = {
        module.path_at(index).removesuffix(ROUTED): set() for module in structure.modules
        if module.kind == "experts" for index in module.layers or (None,)}
    for path in [path for path in by_module if found and EXPERTS in path]:
        place = path[:path.rindex(EXPERTS) + len(EXPERTS)]
        if place in found:
            found[place] |= {tensor.dtype for tensor in by_module.pop(path).values()}
    return found


EXPERTS, ROUTED = ".experts", ".routed_experts"


def _add_experts(
    bill: Bill, module: Module, position: int, cut: Cut, experts: Experts
) -> None:
    """Add one matrix of the experts of every layer, by the format where any tensor of a layer's
    experts is not in the 16 or 32 bits of plain ones."""
    for layer in experts.layers:
        stored = experts.stored[module.path_at(layer).removesuffix(ROUTED)]
        quantized = not stored.issubset(PLAIN_DTYPES)
        if quantized and experts.gap is not None:
            raise experts.gap
        parts = (format_parts(experts.weights, module, position, experts.serving)
                 if quantized and experts.weights is not None
                 else plain_parts(module, module.leaves[position], experts.serving))
        for part in parts:
            bill.add(module, cut, part, 1)


def _distinct(
    by_module: dict[str, Tensors], module: Module, position: int, layers: tuple[int, ...]
) -> Counter[Stored]:
    """Take one leaf of every layer out of `by_module`; count the layers that are stored alike."""
    leaf = module.leaves[position].name
    path, only = module.leaf_path(leaf), leaf if module.kind in TENSORS else None
    return Counter(_taken(by_module, path.replace("*", str(layer)), only) for layer in layers)


def _taken(by_module: dict[str, Tensors], path: str, only: str | None) -> Stored:
    """Take a module's tensors, or `only` the one, out of `by_module`."""
    if only is None:
        return tuple(sorted(by_module.pop(path, {}).items()))
    found = by_module.get(path, {})
    return ((only, found.pop(only)),) if only in found else ()


def _expected(
    module: Module, position: int, weights: WeightFormat | None, dtype: str
) -> Iterator[Part]:
    if weights is not None and is_quantized(module, weights):
        return format_parts(weights, module, position, dtype)
    return plain_parts(module, module.leaves[position], dtype)


def _missing(count: int) -> Iterator[Note]:
    if count:
        yield Note("modules-without-tensors", f"modules without tensors in the headers: {count}, "
                   "counted from the config's sizes", "Check that every weight file was read.")


def _unclaimed(by_module: dict[str, Tensors], structure: Structure) -> Iterator[Note]:
    skipped = not_weights()
    if structure.tied:
        by_module.pop("lm_head", None)
    left = [(f"{module}.{name}", tensor) for module, tensors in by_module.items()
            for name, tensor in tensors.items() if name not in skipped]
    if left:
        size = sum(_file_bytes(tensor) for _, tensor in left)
        yield Note("tensors-not-counted", f"tensors of no layer of the engine's model: "
                   f"{len(left)} ({size:,} bytes in the file), not counted: {left[0][0]}"
                   + (" and others" if len(left) > 1 else ""))


def _file_bytes(tensor: Tensor) -> int:
    bits = dtype_bits(tensor.dtype, "float32")
    for size in tensor.shape or ():
        bits *= size
    return bits // 8
