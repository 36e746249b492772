"""The simulated allocator: c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantplan.planner.allocator import Allocator, block_bytes, segment_bytes

MIB = 1 << 20


# kMinBlockSize 512; kSmallBuffer 2 MiB up to kSmallSize 1 MiB; large_segment_size 20 MiB below
# kMinLargeAlloc 10 MiB; kRoundLarge 2 MiB from there.
@pytest.mark.parametrize("size, block, segment", [
    (1, 512, 2 * MIB), (513, 1024, 2 * MIB), (MIB, MIB, 2 * MIB),
    (MIB + 1, MIB + 512, 20 * MIB), (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB, 10 * MIB), (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
])
def test_sizes_are_rounded(size: int, block: int, segment: int) -> None:
    memory = Allocator()
    memory.take(size)
    assert (block_bytes(size), segment_bytes(block)) == (block, segment)
    assert memory.reserved_bytes == segment


@pytest.mark.parametrize("rest, charged", [(512, True), (MIB, True), (MIB + 512, False)])
def test_a_rest_of_up_to_1_mib_stays_with_its_block(rest: int, charged: bool) -> None:
    # should_split: large blocks are split where more than kSmallSize remains.
    memory, size = Allocator(), 14 * MIB - rest
    memory.take(size)
    assert memory.allocated_bytes == size + rest * charged
    assert memory.reserved_bytes == 14 * MIB


def test_small_blocks_are_cut_from_2_mib_and_merge_again() -> None:
    memory = Allocator()
    blocks = memory.take_all([MIB // 2] * 3)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (3 * MIB // 2, 2 * MIB)
    for block in (blocks[0], blocks[2], blocks[1]):
        memory.give_back(block)
    memory.take(MIB)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (MIB, 2 * MIB)
    assert memory.peak_bytes == 3 * MIB // 2


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    memory = Allocator()
    large, keep, small = memory.take(30 * MIB), memory.take(1), memory.take(16 * MIB)
    memory.give_back(large)
    memory.give_back(small)
    found = memory.take(15 * MIB)
    assert found is small and found is not None and found.bytes == 16 * MIB
    assert keep is not None and memory.reserved_bytes == 48 * MIB


def test_whole_free_segments_go_back_to_the_driver() -> None:
    memory = Allocator()
    first, _ = memory.take(4 * MIB), memory.take(4 * MIB)
    whole = memory.take(12 * MIB)
    memory.give_back(first)
    memory.give_back(whole)
    memory.empty_cache()
    assert (memory.allocated_bytes, memory.reserved_bytes) == (4 * MIB, 20 * MIB)


def test_nothing_takes_no_block() -> None:
    memory = Allocator()
    assert memory.take(0) is None
    memory.give_back(None)
    assert memory.allocated_bytes == memory.reserved_bytes == 0


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans()), max_size=60))
def test_blocks_never_overlap_and_all_memory_comes_back(steps: list[tuple[int, bool]]) -> None:
    memory, held = Allocator(), []
    for size, free in steps:
        held.append(memory.take(size))
        if free:
            memory.give_back(held.pop(len(held) // 2))
    spans = sorted((block.start, block.start + block.bytes) for block in held if block)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert memory.allocated_bytes == sum(end - start for start, end in spans)
    for block in held:
        memory.give_back(block)
    memory.empty_cache()
    assert memory.allocated_bytes == memory.reserved_bytes == 0
