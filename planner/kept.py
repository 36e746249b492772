"""What a kernel keeps of a layer's tensors: padded, repacked, in another dtype, or freed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import lcm, prod
from typing import Any

from quantplan.dispatch.weight_format import WeightFormat
from quantplan.planner.cuts import COPIES
from quantplan.planner.parameters import RankLayer
from quantplan.planner.parts import dtype_bits
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple
from quantplan.tables.versions import default_version, version_key


class Kept(NamedTuple):
    """A tensor after the kernel prepared it; `replaces` is the number of the created tensor that it
    stands for, None for a further one; `made_anew` where it is not that very tensor."""

    holds: str
    bytes: int
    made_anew: bool
    replaces: int | None


class Served(NamedTuple):
    """What else decides it: the serving dtype, the compute capability x 10, the engine and its
    version (None: the default one)."""

    dtype: str
    capability: int
    engine: str = "vllm"
    version: str | None = None


@cache
def kernel_row(kernel: str, engine: str = "vllm") -> Mapping[str, Any] | None:
    """Return the row of a kernel class, or of routed experts' "list backend", None where it is not
    known what it keeps."""
    rows: list[Mapping[str, Any]] = read_table(f"kept/{engine}")["kernels"]
    return next((row for row in rows if kernel in row["kernels"]), None)


def kept_tensors(
    layer: RankLayer, weights: WeightFormat, row: Mapping[str, Any] | None, served: Served
) -> tuple[Kept, ...]:
    """Return what the kernel of `row` keeps of a quantized layer, in the order of its tensors.

    Tensors that its row does not name stay as they are; a kernel without a row keeps all.
    """
    if row is None:
        return tuple(Kept(tensor.holds, tensor.bytes, False, position)
                     for position, tensor in enumerate(layer.tensors))
    sizes = _sizes(layer, weights)
    wanted = {keep["of"]: keep for keep in row["keeps"] if _applies(keep, weights, served)}
    return tuple(_kept(layer, weights, wanted, sizes, served.dtype))


def _kept(
    layer: RankLayer, weights: WeightFormat, wanted: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[str, int], dtype: str,
) -> Iterator[Kept]:
    seen = set()
    for number_of, tensor in enumerate(layer.tensors):
        position: int | None = number_of
        kind = "tensor_scale" if tensor.holds == "scale" and tensor.whole else tensor.holds
        keep = wanted.get(kind)
        seen.add(kind)
        if keep is None:
            yield Kept(tensor.holds, tensor.bytes, False, position)
        else:
            size = _bytes(keep, sizes, _bits(keep, tensor.bits, weights, dtype))
            if keep.get("beside"):
                yield Kept(tensor.holds, tensor.bytes, False, position)
                position = None
            for number in range(keep.get("number", 1)):
                yield Kept(tensor.holds, size, True, None if number else position)
    for kind, keep in wanted.items():
        if kind in ("channel_scale", "zero_point") and kind not in seen:
            bits = _bits(keep, weights.bits, weights, dtype)
            yield Kept(kind, _bytes(keep, sizes, bits), True, None)


def _bytes(keep: Mapping[str, Any], sizes: Mapping[str, int], bits: int) -> int:
    return prod(sizes[dim] if dim in sizes else int(dim) for dim in keep["dims"]) * bits // 8


def _bits(keep: Mapping[str, Any], own: int, weights: WeightFormat, dtype: str) -> int:
    if "dtype" not in keep:
        return own
    return weights.bits if keep["dtype"] == "weight" else dtype_bits(keep["dtype"], dtype)


def _applies(keep: Mapping[str, Any], weights: WeightFormat, served: Served) -> bool:
    if not keep.get("min_capability", 0) <= served.capability < keep.get("below_capability", 999):
        return False
    version = version_key(served.version or default_version(served.engine))
    if not version_key(keep.get("oldest", "0")) <= version <= version_key(
            keep.get("newest", "999")):
        return False
    asked = {None: True, "symmetric": weights.symmetric, "asymmetric": not weights.symmetric,
             "blocks": weights.block is not None, "channels": weights.block is None}
    return asked[keep.get("only")]


def _sizes(layer: RankLayer, weights: WeightFormat) -> dict[str, int]:
    """Return the sizes that rows name; groups of -1 are one group of all inputs."""
    n, k, group = layer.n, layer.k, weights.group
    block = weights.block[1] if weights.block else 0
    n_tile, k_tile = marlin_tiles(n, k, group if group > 0 else block)
    sizes = {"n": n, "k": k, "n_tile": n_tile, "k_tile": k_tile}
    sizes |= {f"{name}_{to}": _up(size, to) for name, size in (("n", n), ("k", k))
              for to in (16, 32, 64, 128, 256)}
    sizes["experts"] = layer.module.facts.get(COPIES, 1)
    groups, tiles, padded = (-(-size // group) if group > 0 else 1
                             for size in (k, k_tile, _up(k, 128)))
    blocks = -(-k_tile // block) if block else 1
    sizes |= {f"groups_{to}": _up(groups, to) for to in (2, 4, 8)}
    return {**sizes, "groups": groups, "groups_tile": tiles, "groups_128": padded,
            "k_blocks": blocks, "k_blocks_4": _up(blocks, 4)}


def marlin_tiles(n: int, k: int, group: int = -1) -> tuple[int, int]:
    """Return n and k padded to the cheaper of Marlin's thread tiles (vllm 0.32.0
    model_executor/layers/quantization/utils/marlin_utils.py:marlin_padded_nk)."""
    whole = max(group, 1)
    tiles = ((_up(n, 64), _up(k, lcm(128, whole))), (_up(n, 128), _up(k, lcm(64, whole))))
    return min(tiles, key=lambda size: (size[0] * size[1], size[0] + size[1]))


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
