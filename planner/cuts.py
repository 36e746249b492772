"""How much of one checkpoint tensor a tensor-parallel rank holds.

Every rank of a group holds the same number of bytes: the engine asserts even division, pads the
vocabulary to a multiple of 64 that must divide, and replicates what it cannot split.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from quantplan.dispatch.shard import Shard, shard
from quantplan.dispatch.structure import Module
from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple

OUTPUT_SIZES = ("n", "n_blocks")
COPIES = "copies"
"""The fact of stacked experts that counts those of a rank (planner/experts.py:stacked)."""
INPUT_SIZES = ("k", "k_blocks", "groups")


class Cut(NamedTuple):
    """Output and input features of a checkpoint module: whole, and those of one rank;
    `before_rank` are the rank's outputs in front of it in the fused layer, `copies` how many of it
    one tensor holds: the experts of a rank."""

    n: int
    k: int
    n_rank: int
    k_rank: int
    before_rank: int = 0
    copies: int = 1


def cut_leaves(module: Module, tp: int) -> list[Cut]:
    """Return the cut of every leaf of `module` over `tp` ranks.

    Raises UsageError where the engine would refuse because the layer does not divide.
    """
    if COPIES in module.facts:  # experts, which have the sizes of a rank
        return _stack(module)
    part = shard(module, tp)
    if not part.divides:
        raise uneven(module.path, tp, f"{part.n_full} x {part.k_full}")
    outputs = _outputs(module, part)
    starts = accumulate(outputs, initial=0)
    return [Cut(leaf.n, leaf.k or 1, rows, part.k, before)
            for leaf, rows, before in zip(module.leaves, outputs, starts, strict=False)]


def _stack(module: Module) -> list[Cut]:
    starts = accumulate((leaf.n for leaf in module.leaves), initial=0)
    return [Cut(leaf.n, leaf.k or 1, leaf.n, leaf.k or 1, before, module.facts[COPIES])
            for leaf, before in zip(module.leaves, starts, strict=False)]


def _outputs(module: Module, part: Shard) -> tuple[int, ...]:
    """Return how many of each leaf's outputs the rank holds; a leaf that is fused on disk holds
    several of the layer's partitions."""
    if len(module.leaves) == 1:
        return (part.n,)
    if len(module.leaves) <= len(part.parts) and not module.parts:
        return part.parts
    first = [leaf.n * part.n // part.n_full for leaf in module.leaves[:-1]]
    return (*first, part.n - sum(first))  # padding goes with the last


def uneven(what: str, tp: int | None, found: str) -> UsageError:
    """Return the refusal of a size that does not divide over the ranks."""
    ranks = f"{tp} ranks" if tp else "the ranks"
    return UsageError(f"{what} does not divide over {ranks}", wanted="an even share for every rank",
                      found=found, hint="Choose another tensor parallel size or format.")


def rank_elements(
    shape: Sequence[int], dims: Sequence[str], cut: Cut, what: str, block: int | None = None
) -> int:
    """Return how many elements of a tensor one rank holds.

    `block` is the outputs of one block, which the engine counts over the whole fused layer. `dims`
    names what each size of `shape` counts, as in tables/formats; sizes of 1 and numbers are
    replicated, padding of the vocabulary included. Raises UsageError for a share that is not whole.
    """
    elements = cut.copies
    for size, dim in zip(shape, dims, strict=True):
        elements *= (_blocks(cut, block) if block and dim == "n_blocks"
                     else _share(size, dim, cut, what))
    return elements


def _blocks(cut: Cut, block: int) -> int:
    """Return the blocks that begin with this leaf's outputs in the rank's fused layer."""
    end = cut.before_rank + cut.n_rank
    return -(-end // block) + -cut.before_rank // block


def _share(size: int, dim: str, cut: Cut, what: str) -> int:
    if dim in OUTPUT_SIZES:
        whole, part = cut.n, cut.n_rank
    elif dim in INPUT_SIZES:
        whole, part = cut.k, cut.k_rank
    else:
        return size
    if size == 1 or whole == part:
        return size
    if size * part % whole:
        raise uneven(f"{what} ({dim})", None, f"{size} x {part} / {whole}")
    return size * part // whole
