"""What the KV cache keeps for one layer of one rank, and how many blocks a request takes of it."""

from __future__ import annotations

from quantplan.tables.record import NamedTuple

FULL, WINDOW, CHUNK, STATE = "full", "window", "chunk", "state"
"""A layer that keeps every token, the last ones, those of a chunk, or one state of fixed size."""


class Use(NamedTuple):
    """How the engine is used: tokens of a request, tokens in flight beside it, ranks that share a
    context, states that drafts need besides a request's own, and whether prefixes are cached, which
    takes one more (vllm mamba_cache_mode align)."""

    tokens: int
    in_flight_tokens: int
    dcp: int = 1
    draft_tokens: int = 0
    caches_prefixes: bool = False


class Spec(NamedTuple):
    """The cache of one layer.

    `row_bytes` are those of one token of all KV heads of the rank, of `tokens_per_row` tokens where
    they are compressed, or of a whole state; pages are multiples of `alignment_bytes`;
    `span_tokens` a window or a chunk; `checkpoints` are states that a prefill keeps where prefixes
    are cached; `shape` is what else has to be equal for layers to share a group
    (vllm v1/kv_cache_interface.py).
    """

    kind: str
    block_tokens: int
    row_bytes: int
    shape: tuple[int | str, ...] = ()
    span_tokens: int | None = None
    latent: bool = False
    padded_bytes: int | None = None
    checkpoints: int = 0
    tokens_per_row: int = 1
    alignment_bytes: int = 1

    @property
    def own_bytes(self) -> int:
        """Return the bytes of one block that hold something."""
        rows = 1 if self.kind == STATE else self.block_tokens // self.tokens_per_row
        return self.row_bytes * rows

    @property
    def page_bytes(self) -> int:
        """Return the bytes of one block, padding included."""
        if self.padded_bytes is not None:
            return self.padded_bytes
        return -(-self.own_bytes // self.alignment_bytes) * self.alignment_bytes

    @property
    def grows(self) -> bool:
        """Return whether a request takes more of it with every token."""
        return self.kind == FULL

    def blocks(self, use: Use) -> int:
        """Return the blocks of one request
        (vllm v1/kv_cache_interface.py: max_memory_usage_bytes)."""
        if self.kind == STATE:
            more = 1 + self.checkpoints if use.caches_prefixes else 0
            return 1 + use.draft_tokens + more
        if self.kind == FULL:
            return -(-use.tokens // (use.dcp * self.block_tokens))
        span = self.span_tokens or 0
        # A window may begin within a block, and its own last token is among those in flight.
        kept = span + use.in_flight_tokens - (self.kind == WINDOW)
        return -(-min(kept, use.tokens) // self.block_tokens) + (self.kind == WINDOW)
