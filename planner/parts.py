"""What one checkpoint module costs: its tensors, with the dtype that the engine allocates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from typing import Any

from quantplan.dispatch.facts import Tensor
from quantplan.dispatch.formats import plain_tensors
from quantplan.dispatch.structure import Leaf, Module
from quantplan.dispatch.weight_format import WeightFormat, file_shape, layout_row, word_bits
from quantplan.planner.cuts import Cut, rank_elements
from quantplan.tables.errors import CheckpointError, NotKnownError, UsageError
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple

PLAIN_DTYPES = ("F16", "BF16", "F32", "F64")
PLAIN_NAMES = ("weight", "bias")
OWN_BITS = {"int32": 32}
"""Dtypes of weights that no model is served in."""


class Part(NamedTuple):
    """One tensor of a checkpoint module: whole shape, what its sizes count, bits of one value.

    `values` is how many values one stored element packs; `note` is said beside the figure; `name`
    is the last part of its name.
    """

    holds: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    bits: int
    values: int = 1
    source: str | None = None
    note: str | None = None
    block: int | None = None
    name: str = ""

    def rank_values(self, cut: Cut, what: str) -> int:
        """Return how many values one rank holds."""
        return rank_elements(self.shape, self.dims, cut, what, self.block) * self.values


def model_bits(dtype: str) -> int:
    """Return the bits of one element of a serving dtype; raise UsageError for an unknown one."""
    table = read_table("formats/formats")
    if dtype not in table["model_dtypes"]:
        raise UsageError(f"dtype {dtype!r}", wanted="one of " + ", ".join(table["model_dtypes"]))
    return int(table["dtype_bits"][table["model_dtypes"][dtype]])


def dtype_bits(dtype: str, serving: str) -> int:
    """Return the bits of a safetensors dtype, or of the serving dtype for "model"."""
    if dtype == "model":
        return model_bits(serving)
    bits: Mapping[str, int] = read_table("formats/formats")["dtype_bits"]
    if dtype not in bits:
        raise NotKnownError(f"bits of the tensor dtype {dtype}", wanted="one of " + ", ".join(bits))
    return bits[dtype]


NVFP4_GROUP = 16
"""Inputs of one scale of NVFP4; no other format has as few."""


def plain_parts(module: Module, leaf: Leaf, serving: str) -> Iterator[Part]:
    """Yield the parts of an unquantized module: in the serving dtype, whatever the file's is,
    unless its class builds it in another one."""
    for name, shape in plain_tensors(module, leaf):
        holds = name if name in PLAIN_NAMES else "weight"
        yield _plain_part(holds, shape, module.dtype or serving)


def _plain_part(name: str, shape: tuple[int, ...], serving: str) -> Part:
    bits = OWN_BITS.get(serving) or model_bits(serving)
    return Part(name, shape, ("n", "k")[:len(shape)], bits, name=name)


def format_parts(
    weights: WeightFormat, module: Module, position: int, serving: str
) -> Iterator[Part]:
    """Yield the parts of leaf number `position` of a module quantized in the format `weights`."""
    leaf = module.leaves[position]
    for row in weights.tensors:
        yield from row_part(row, _whole_shape(row, weights, module, leaf), weights, position,
                            serving)
    if module.bias:
        yield _plain_part("bias", (leaf.n,), serving)


def _whole_shape(
    row: Mapping[str, Any], weights: WeightFormat, module: Module, leaf: Leaf
) -> tuple[int, ...]:
    """Return the shape of a layout's tensor; refuse groups that do not fill the inputs, as the
    engine does (vllm 0.32.0 distributed/utils.py:verify_group_size_divides_partition). It does not
    ask for the scales of NVFP4 experts, which are of whole groups only
    (modelopt.py:ModelOptNvFp4FusedMoE.create_weights)."""
    k = leaf.k or 1
    if weights.group > 0 and k % weights.group:
        if module.kind == "experts" and weights.group == NVFP4_GROUP:
            k -= k % weights.group if "groups" in row["dims"] else 0
            return file_shape(row, weights, leaf.n, k)
        raise UsageError(f"{k} inputs of {module.path} are not whole groups of {weights.group}",
                         wanted=f"a multiple of {weights.group}", found=str(k),
                         hint="Choose another format or group size.")
    return file_shape(row, weights, leaf.n, k)


def row_part(
    row: Mapping[str, Any], shape: tuple[int, ...], weights: WeightFormat, position: int,
    serving: str,
) -> Iterator[Part]:
    """Yield the part of a tensor that a layout describes; nothing when the engine keeps none."""
    allocated = row.get("engine", row["dtype"])
    if allocated == "none" or (row.get("once") and position > 0):
        return
    bits, values = dtype_bits(allocated, serving), 1
    if "packed" in row and word_bits(row) % weights.bits == 0:
        bits, values = weights.bits, word_bits(row) // weights.bits
    yield Part(row["holds"], shape, tuple(row["dims"]), bits, values,
               layout_row(weights.layout)["source"], row.get("because"),
               weights.block[0] if weights.block else None, row["name"])


def is_plain(found: Mapping[str, Tensor]) -> bool:
    """Return whether a module's tensors, KV cache scales aside, are those of an unquantized one."""
    weight = found.get("weight")
    if weight is None or weight.dtype not in PLAIN_DTYPES:
        return False
    return set(found) - not_weights() <= set(PLAIN_NAMES)


def stored_parts(
    found: Mapping[str, Tensor], weights: WeightFormat | None, module: Module, position: int,
    *, serving: str, tp: int,
) -> Iterator[Part]:
    """Yield the parts of a module from its tensors in the safetensors headers.

    Floating-point tensors of unquantized modules take the serving dtype, tensors of a known layout
    the dtype that the engine allocates, all others the file's. Raises CheckpointError for a shape
    that is not the config's, NotKnownError for a tensor that no rule splits over several ranks.
    """
    leaf, serving = module.leaves[position], module.dtype or serving
    plain = module.kind == "tensor" or is_plain(found)
    expected = dict(plain_tensors(module, leaf))
    for name, tensor in found.items():
        what = f"{module.leaf_path(leaf.name)}.{name}"
        row = None if weights is None or plain else weights.row(name)
        if weights is not None and row is not None:
            wanted = _whole_shape(row, weights, module, leaf)
            _check_shape(what, tensor, wanted)
            yield from row_part(row, wanted, weights, position, serving)
        elif name == "bias" or plain:
            # Some tools store a bias for every layer; the engine skips those it has no use for.
            if name in expected:
                _check_shape(what, tensor, expected[name], module.kind == "tensor")
                yield _plain_part(name if name in PLAIN_NAMES else "weight", expected[name],
                                  serving)
        elif name not in not_weights():
            yield _unknown_part(what, tensor, module, leaf, tp)


def _check_shape(
    what: str, tensor: Tensor, wanted: tuple[int, ...], flat: bool = False
) -> None:
    """Refuse a shape that differs by more than sizes of 1; `flat` are those of which only the
    number of elements is known."""
    shape = tensor.shape or ()
    if flat and prod(shape) == prod(wanted):
        return
    if [size for size in shape if size != 1] != [size for size in wanted if size != 1]:
        raise CheckpointError(f"shape of {what} in the safetensors headers",
                              wanted=f"{wanted} by config.json", found=str(shape))


def _unknown_part(what: str, tensor: Tensor, module: Module, leaf: Leaf, tp: int) -> Part:
    """Return the part of a tensor that no layout describes: the file's own bytes.

    Names that begin as torch.nn.Linear's do keep its order, output features first.
    """
    shape = tensor.shape or ()
    bits = dtype_bits(tensor.dtype, "float32")
    replicated = all(size == 1 for size in shape) or 0 in shape or module.split == "none"
    if tp == 1 or replicated:
        return Part("stored", shape, ("1",) * len(shape), bits)
    ordered = what.rsplit(".", 1)[-1].startswith("weight") and len(shape) == 2
    if not ordered or leaf.n % shape[0] or (leaf.k or 1) % shape[1]:
        raise NotKnownError(f"how {what} {shape} splits over {tp} ranks",
                            wanted="a tensor of a known weight format",
                            hint="With tp 1 the file's own bytes are counted.")
    return Part("stored", shape, ("n", "k"), bits)


@cache
def not_weights() -> frozenset[str]:
    """Return the last parts of tensor names that take no weight memory in the engine."""
    return frozenset(row["name"] for row in read_table("formats/formats")["not_weights"])
