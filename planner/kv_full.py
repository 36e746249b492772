"""The KV cache of one rank where every layer attends to everything."""

from __future__ import annotations

from typing import NamedTuple

from quantplan.planner.kv_cache import BLOCK_TOKENS
from quantplan.planner.lines import BudgetLine, total_bytes


class FullKv(NamedTuple):
    """What tokens take of the pool; `context_limit` is the longest request."""

    lines: tuple[BudgetLine, ...]
    context_limit: int
    block_tokens: int = BLOCK_TOKENS
    override_blocks: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Return what one more token of a request takes."""
        return total_bytes(self.lines)

    @property
    def fixed_bytes_per_request(self) -> int:
        """Return what a request takes whatever its length."""
        return 0

    def blocks(self, available_bytes: int) -> int:
        """Return the blocks of the pool."""
        if self.override_blocks is not None:
            return self.override_blocks
        return max(0, available_bytes // (self.bytes_per_token * self.block_tokens))

    def printed_tokens(self, available_bytes: int, max_model_len: int | None = None) -> int:
        """Return the tokens of the engine's line "GPU KV cache size"."""
        return self.blocks(available_bytes) * self.block_tokens

    def max_concurrency(self, available_bytes: int, max_model_len: int | None = None) -> float:
        """Return the engine's "Maximum concurrency" for requests of that length."""
        length = max_model_len or self.context_limit
        return self.blocks(available_bytes) / -(-length // self.block_tokens)

    def largest_context(self, available_bytes: int, limit: int | None = None) -> int:
        """Return the longest request that the engine would start with, up to `limit`."""
        return min(limit or self.context_limit,
                   max(0, self.blocks(available_bytes) - 1) * self.block_tokens)
