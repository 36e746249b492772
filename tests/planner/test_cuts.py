"""How much of a tensor one rank holds, where the engine counts over a fused layer."""

from __future__ import annotations

from quantplan.planner.cuts import Cut, rank_elements


def test_blocks_are_counted_over_the_whole_fused_layer() -> None:
    """vllm fp8.py:create_weights allocates ceil(sum of a rank's parts / block) rows of scales: 2880
    outputs of qkv_proj are 23 blocks, though three parts of 960 would be 24; the engine's tensor is
    [23, 8]."""
    cut = [Cut(960, 960, 960, 960, before) for before in (0, 960, 1920)]
    assert [rank_elements((8, 8), ("n_blocks", "k_blocks"), c, "x", 128) for c in cut] == [
        8 * 8, 7 * 8, 8 * 8]
