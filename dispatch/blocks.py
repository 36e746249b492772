"""Quantization blocks under tensor parallelism: a rank must hold whole ones."""

from __future__ import annotations

from quantplan.dispatch.shard import Shard, whole_pieces
from quantplan.dispatch.trace import refuse

Block = tuple[int, int]


def is_split(shard: Shard, tp: int) -> bool:
    """Return whether the ranks share the layer's output features."""
    return tp > 1 and shard.n_full // shard.n == tp


def check_linear(
    block: Block, shard: Shard, parts: tuple[int, ...], tp: int, at: tuple[str, str]
) -> None:
    """Refuse blocks (N, K) that a rank does not hold whole: its input features, then each of the
    output `parts`. `at` is the layer's path and the engine's source."""
    block_n, block_k = block
    if tp > 1 and shard.k_full // shard.k == tp and shard.k % block_k:
        raise refuse("shapes under TP", "ValueError",
                     f"Weight input_size_per_partition = {shard.k} is not divisible by weight "
                     f"quantization block_k = {block_k}.", *at,
                     hint=whole_pieces(shard.k_full, block_k, "blocks"))
    for part in parts:
        if part % block_n:
            whole = part * (tp if is_split(shard, tp) else 1)
            raise refuse("shapes under TP", "ValueError",
                         f"Weight output_partition_size = {part} is not divisible by weight "
                         f"quantization block_n = {block_n}.", *at,
                         hint=whole_pieces(whole, block_n, "blocks"))


def check_experts(
    block: Block, held: int, whole: int, tp: int, at: tuple[str, str]
) -> None:
    """Refuse blocks (N, K) of an expert whose intermediate size, `whole` features of which a rank
    has `held`, a rank does not hold whole. `at` is the layer's path and the engine's source."""
    for size, of, letter, matters in ((block[0], "output_size of gate's and up's", "n", True),
                                      (block[1], "input_size of down's", "k", tp > 1)):
        if matters and held % size:
            raise refuse("shapes under TP", "ValueError",
                         f"The {of} weight = {held} is not divisible by weight quantization "
                         f"block_{letter} = {size}.", *at,
                         hint=whole_pieces(whole, size, "blocks"))
