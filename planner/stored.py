"""Weight bytes from the safetensors headers: each tensor goes to the layer that loads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from quantplan.dispatch.facts import Checkpoint, Note, Tensor
from quantplan.dispatch.formats import is_quantized
from quantplan.dispatch.structure import Module, Structure
from quantplan.dispatch.weight_format import WeightFormat, read_format
from quantplan.planner.bill import Bill
from quantplan.planner.parts import (
    Part,
    dtype_bits,
    format_parts,
    not_weights,
    plain_parts,
    stored_parts,
)
from quantplan.planner.weights import HEADERS, Weights, cut_modules, format_title
from quantplan.tables.errors import NotKnownError

Tensors = dict[str, Tensor]
Stored = tuple[tuple[str, Tensor], ...]


def weigh_stored(
    checkpoint: Checkpoint, structure: Structure, tp: int, dtype: str
) -> Weights:
    """Return the weights of rank 0 from headers that have shapes.

    A module without tensors is counted from the config's sizes and noted; tensors that no layer of
    the engine loads are noted and not counted.
    """
    weights, title, gap = _format(checkpoint, dtype)
    by_module = _by_module(checkpoint.tensors or {})
    bill, missing = Bill(structure.source), 0
    for module, layers, cuts in cut_modules(structure, tp):
        for position, cut in enumerate(cuts):
            for stored, times in _distinct(by_module, module, position, layers).items():
                if not stored and gap is not None:
                    raise gap
                missing += 0 if stored else times
                parts = (stored_parts(dict(stored), weights, module, position,
                                      serving=dtype, tp=tp)
                         if stored else _expected(module, position, weights, dtype))
                for part in parts:
                    bill.add(module, cut, part, times)
    notes = (*_missing(missing), *_unclaimed(by_module, structure))
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


def _by_module(tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """Return {module path: {last part of the name: tensor}}."""
    found: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        module, _, last = name.rpartition(".")
        found.setdefault(module, {})[last] = tensor
    return found


def _distinct(
    by_module: dict[str, Tensors], module: Module, position: int, layers: tuple[int, ...]
) -> Counter[Stored]:
    """Take one leaf of every layer out of `by_module`; count the layers that are stored alike."""
    path = module.leaf_path(module.leaves[position].name)
    return Counter(tuple(sorted(by_module.pop(path.replace("*", str(layer)), {}).items()))
                   for layer in layers)


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
