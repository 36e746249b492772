"""How tensor parallelism cuts a layer: sizes of rank 0, as the engine's parallel layers do."""

from __future__ import annotations

from quantplan.dispatch.structure import Heads, Leaf, Module
from quantplan.tables.record import NamedTuple

VOCAB_PADDING = 64
"""vLLM model_executor/layers/vocab_parallel_embedding.py:DEFAULT_VOCAB_PADDING_SIZE."""

RANKS = (1, 2, 4, 8, 16)
"""Tensor parallel sizes that a remedy may name."""


class Shard(NamedTuple):
    """Sizes of one rank: n output and k input features, and of all ranks together (kv heads are
    replicated when there are fewer than ranks); `parts` are the fused outputs' sizes."""

    n: int
    k: int
    n_full: int
    k_full: int
    parts: tuple[int, ...]
    divides: bool = True


NO_SHARD = Shard(0, 0, 0, 0, ())
"""Stands for layers without a weight of their own, such as Attention."""


def whole_pieces(features: int, size: int, pieces: str) -> str:
    """Return the remedy where a rank's shard of `features` is not whole `pieces` (groups or blocks)
    of `size`: the tensor parallel sizes that leave whole ones, if there are any."""
    ranks = [str(tp) for tp in RANKS if features % (tp * size) == 0]
    if not ranks:
        return (f"No tensor parallel size leaves whole {pieces} of {size} in {features} features: "
                "quantize the model again, without this layer or in another format.")
    return (f"Use a tensor parallel size that leaves whole {pieces} of {size} here: "
            f"{', '.join(ranks)}.")


def shard(module: Module, tp: int) -> Shard:
    """Return rank 0's shard of `module`; `divides` is false where the engine asserts evenness."""
    if not module.leaves:
        return NO_SHARD
    if module.replicated_unless is not None and module.replicated_unless % tp:
        tp = 1
    if module.most_ranks is not None:
        tp = min(tp, module.most_ranks)
    if module.heads is not None:
        return _qkv(module, module.heads, tp)
    if module.split == "vocab":
        return _vocab(module.leaves[0], tp)
    if module.split == "row":
        return _row(module.leaves[0], tp)
    return _column(module, tp if module.split == "column" else 1)


def on_ranks(module: Module, tp: int) -> Module:
    """Return the module as each of `tp` ranks builds it: a fused projection whose Mamba groups are
    copied is plain column-parallel."""
    return module._replace(module="ColumnParallelLinear") if copies_groups(module, tp) else module


def in_blocks(module: Module, block: int, tp: int) -> Module:
    """Return the module with the size that `tp` ranks cut padded to whole weight blocks of each
    (models/deepseek_v4/nvidia/model.py:DeepseekV4MLP)."""
    def padded(size: int) -> int:
        return -(-(size // block) // tp) * block * tp

    return module._replace(leaves=tuple(
        leaf._replace(k=padded(leaf.k or 1)) if module.split == "row" else
        leaf._replace(n=padded(leaf.n)) for leaf in module.leaves))


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    """Return the kv heads that one rank holds: an even share, or one replicated head."""
    return max(1, kv_heads // tp)


def heads_divide(heads: int, kv_heads: int, tp: int) -> bool:
    """Return whether query and kv heads divide over `tp` ranks (kv heads may be replicated)."""
    kv = kv_heads % tp == 0 if kv_heads >= tp else tp % kv_heads == 0
    return heads % tp == 0 and kv


def padded_vocab(vocab: int) -> int:
    """Return the vocabulary size padded to a multiple of 64, as the engine allocates it."""
    return -(-vocab // VOCAB_PADDING) * VOCAB_PADDING


def _qkv(module: Module, heads: Heads, tp: int) -> Shard:
    kv = kv_heads_per_rank(heads.kv, tp)
    parts: tuple[int, ...] = (
        heads.query // tp * heads.dim, kv * heads.dim, kv * heads.value_dim)
    if module.split == "qkv_index":  # an index query per kv head, and one index key on every rank
        index_dim = module.leaves[-1].n
        parts = (*parts, kv * index_dim, index_dim)
    # The engine's own full size counts replicated kv heads once per rank.
    k = module.leaves[0].k or 1
    return Shard(sum(parts), k, sum(parts) * tp, k, parts, heads_divide(heads.query, heads.kv, tp))


def _vocab(leaf: Leaf, tp: int) -> Shard:
    padded = padded_vocab(leaf.n)
    k = leaf.k or 1
    return Shard(padded // tp, k, padded, k, (padded // tp,), padded % tp == 0)


def _row(leaf: Leaf, tp: int) -> Shard:
    k = leaf.k or 1
    return Shard(leaf.n, k // tp, leaf.n, k, (leaf.n,), k % tp == 0)


def _column(module: Module, tp: int) -> Shard:
    whole = module.parts or tuple(leaf.n for leaf in module.leaves)
    parts = tuple(n if i in module.whole else n // tp for i, n in enumerate(whole))
    k = module.leaves[0].k or 1
    padding = -sum(parts) % module.aligned
    if padding:
        whole, parts = (*whole, padding * tp), (*parts, padding)
    if copies_groups(module, tp):
        return _grouped(whole, parts, module.groups.parts if module.groups else (), k, tp)
    divides = all(n % tp == 0 for i, n in enumerate(whole) if i not in module.whole)
    return Shard(sum(parts), k, sum(whole), k, parts, divides)


def copies_groups(module: Module, tp: int) -> bool:
    """Return whether every rank holds a copy of the parts of one Mamba group, in one partition
    (model_executor/layers/mamba/mamba_mixer2.py:MambaMixer2)."""
    return module.groups is not None and module.groups.number % tp != 0


def _grouped(
    whole: tuple[int, ...], cut: tuple[int, ...], per_group: tuple[int, ...], k: int, tp: int
) -> Shard:
    n = sum(whole[i] if i in per_group else part for i, part in enumerate(cut))
    divides = all(size % tp == 0 for i, size in enumerate(whole) if i not in per_group)
    return Shard(n, k, n * tp, k, (n,), divides)
