"""PyTorch's caching allocator on one GPU, simulated: what blocks of memory cost.

After c10/cuda/CUDACachingAllocator.cpp of torch 2.13, which vLLM 0.32.0 pins, and the constants of
c10/core/AllocatorConfig.h, with default settings and one stream.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

SMALLEST_BLOCK_BYTES = 512
"""kMinBlockSize: sizes are rounded up to a multiple of it."""
SMALL_BYTES = 1 << 20
"""kSmallSize: the largest block of the small pool; a larger one is split only above that rest."""
SMALL_SEGMENT_BYTES = 2 << 20
"""kSmallBuffer: what the small pool asks the driver for."""
LARGE_BYTES = 10 << 20
"""kMinLargeAlloc: from here a block gets a segment of its own."""
LARGE_SEGMENT_BYTES = 20 << 20
"""large_segment_size: what blocks between SMALL_BYTES and LARGE_BYTES are cut from."""
SEGMENT_STEP_BYTES = 2 << 20
"""kRoundLarge: segments of large blocks are a multiple of it."""


def block_bytes(size: int) -> int:
    """Return a request of `size` bytes as the allocator rounds it (round_size)."""
    return max(SMALLEST_BLOCK_BYTES, _up(size, SMALLEST_BLOCK_BYTES))


def segment_bytes(size: int) -> int:
    """Return what the driver is asked for when no free block holds `size` (get_allocation_size)."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if size < LARGE_BYTES else _up(size, SEGMENT_STEP_BYTES)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


class Block:
    """A piece of a segment; `before` and `behind` are its neighbours there."""

    __slots__ = ("before", "behind", "bytes", "free", "small", "start")

    def __init__(self, start: int, size: int, small: bool) -> None:
        self.start, self.bytes, self.small, self.free = start, size, small, False
        self.before: Block | None = None
        self.behind: Block | None = None

    @property
    def place(self) -> tuple[int, int, Block]:
        """Return what free blocks are sorted by: size, then address."""
        return self.bytes, self.start, self


class Allocator:
    """One GPU's allocator: `allocated_bytes` are torch.cuda.memory_allocated(), `reserved_bytes`
    memory_reserved(), `peak_bytes` max_memory_allocated().

    Of free blocks that hold a request the smallest is taken, at the lowest address; segments are
    taken to stand in the order in which they were asked for.
    """

    def __init__(self) -> None:
        self.allocated_bytes = self.reserved_bytes = self.peak_bytes = 0
        self._free: dict[bool, list[tuple[Any, ...]]] = {True: [], False: []}
        self._end = 0

    def take(self, size: int) -> Block | None:
        """Return a block for `size` bytes (malloc, alloc_found_block); None for no bytes."""
        if size <= 0:
            return None
        wanted = block_bytes(size)
        small = wanted <= SMALL_BYTES
        pool = self._free[small]
        if small and len(pool) == 1 and pool[0][0] - wanted >= SMALLEST_BLOCK_BYTES:
            return self._from_tail(pool, wanted)
        block = self._found(wanted, small) or self._segment(wanted, small)
        rest = block.bytes - wanted
        if rest >= SMALLEST_BLOCK_BYTES if small else rest > SMALL_BYTES:
            self._cut(block, wanted)
        block.free = False
        self.allocated_bytes += block.bytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return block

    def _from_tail(self, pool: list[tuple[Any, ...]], wanted: int) -> Block:
        """Return the front of the small pool's only free block: what the longer way does too."""
        rest: Block = pool[0][2]
        block = Block(rest.start, wanted, True)
        block.before, block.behind, rest.before = rest.before, rest, block
        if block.before is not None:
            block.before.behind = block
        rest.start, rest.bytes = rest.start + wanted, rest.bytes - wanted
        pool[0] = rest.place
        self.allocated_bytes += wanted
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return block

    def take_all(self, sizes: Iterable[int]) -> list[Block | None]:
        """Return a block for each of `sizes`, in order."""
        return [self.take(size) for size in sizes]

    def give_back(self, block: Block | None) -> None:
        """Free a block and merge it with free neighbours (free_block, try_merge_blocks)."""
        if block is None:
            return
        self.allocated_bytes -= block.bytes
        for neighbour in (block.before, block.behind):
            if neighbour is not None and neighbour.free:
                self._remove(neighbour)
                block = _joined(*sorted((block, neighbour), key=lambda b: b.start))
        block.free = True
        insort(self._free[block.small], block.place)

    def empty_cache(self) -> None:
        """Return segments without used blocks to the driver (release_cached_blocks)."""
        for pool in self._free.values():
            for _, _, block in [at for at in pool if at[2].before is None and at[2].behind is None]:
                self._remove(block)
                self.reserved_bytes -= block.bytes

    def _found(self, wanted: int, small: bool) -> Block | None:
        pool = self._free[small]
        place = bisect_left(pool, (wanted,))
        return pool.pop(place)[2] if place < len(pool) else None

    def _segment(self, wanted: int, small: bool) -> Block:
        block = Block(self._end, segment_bytes(wanted), small)
        self._end += block.bytes
        self.reserved_bytes += block.bytes
        return block

    def _cut(self, block: Block, wanted: int) -> None:
        rest = Block(block.start + wanted, block.bytes - wanted, block.small)
        rest.before, rest.behind, rest.free = block, block.behind, True
        if rest.behind is not None:
            rest.behind.before = rest
        block.behind, block.bytes = rest, wanted
        insort(self._free[block.small], rest.place)

    def _remove(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, block.place[:2])]


def _joined(first: Block, second: Block) -> Block:
    first.bytes += second.bytes
    first.behind = second.behind
    if first.behind is not None:
        first.behind.before = first
    return first
