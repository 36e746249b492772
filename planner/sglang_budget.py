"""SGLang's budget: weights, what the server keeps free, state and window pools, and the tokens that
it prints as max_total_num_tokens."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.facts import MemoryFlags, Note
from quantplan.planner.budget import EngineRefusal
from quantplan.planner.lines import BudgetLine, total_bytes
from quantplan.planner.sglang_cells import Cells
from quantplan.planner.sglang_pools import Pools
from quantplan.planner.sglang_reserve import Settings
from quantplan.planner.weights import Weights
from quantplan.tables.record import NamedTuple

SCHEMA = "quantplan/budget/sglang/1"
LOADING = "loading"
"""How the line of what loading takes begins."""


class SglangBudget(NamedTuple):
    """The memory of one GPU under SGLang; every bytes figure is per tensor-parallel rank.

    Weights, `overheads` and the pools of tokens make up `memory`. `bytes_per_token` has a token's
    share of the window pool in it; `parameters` are linear and other ones.
    """

    model: str
    architecture: str
    version: str
    tp: int
    dtype: str
    memory: BudgetLine
    parameters: tuple[int, int]
    weights: Weights
    overheads: tuple[BudgetLine, ...]
    settings: Settings
    cells: Cells
    pools: Pools
    bytes_per_token: float
    page_tokens: int
    context_tokens: int
    flags: MemoryFlags
    notes: tuple[Note, ...] = ()
    refusal: EngineRefusal | None = None

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of the pools of tokens."""
        return self.pools.kv_bytes

    @property
    def kv_tokens(self) -> int:
        """Return what the engine prints as max_total_num_tokens."""
        return self.pools.tokens

    @property
    def loaded(self) -> tuple[int, int]:
        """Return what the engine prints as mem usage of "Load weight end", and how far it may be
        off: the weights and what loading them takes besides."""
        lines = [line for line in self.overheads if line.name.startswith(LOADING)]
        return (self.weights.bytes + sum(line.bytes for line in lines),
                sum(line.plus_minus_bytes for line in lines))

    @property
    def overhead_bytes(self) -> int:
        """Return the sum of the overheads."""
        return total_bytes(self.overheads)

    @property
    def fits(self) -> bool:
        """Return whether the pools hold a request."""
        return self.pools.refused is None and self.pools.requests > 0

    @property
    def missing_bytes(self) -> int:
        """Return what weights, overheads and one page of tokens lack; 0 when they fit."""
        if self.fits:
            return 0
        taken = self.weights.bytes + self.overhead_bytes + self.page_tokens * self.bytes_per_token
        return max(1, round(taken) - self.memory.bytes)

    @property
    def largest_context(self) -> int:
        """Return the tokens of the longest request that the pool holds, up to the model's own."""
        return min(self.context_tokens, self.kv_tokens)

    @property
    def engine(self) -> str:
        """Return the engine's name."""
        return "sglang"

    @property
    def longest_request(self) -> int:
        """Return the tokens of the longest request that is allowed."""
        return self.context_tokens

    def requests_of(self, tokens: int) -> float:
        """Return how many requests of `tokens` tokens the pools hold at once."""
        return min(self.kv_tokens / tokens, float(self.pools.requests))

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as plain data of the schema reports/schema/sglang-budget.v1.json."""
        linear, other = self.parameters
        return {
            "schema": SCHEMA,
            "engine": {"name": "sglang", "version": self.version},
            "model": {"name": self.model, "architecture": self.architecture,
                      "format": self.weights.title, "linear_parameters": linear,
                      "other_parameters": other, "total_parameters": linear + other},
            "deployment": {"tp": self.tp, "pp": self.flags.pp, "dtype": self.dtype,
                           "context_length": self.context_tokens, **_settings(self.settings)},
            "memory": self.memory.to_dict(),
            "weights": {"bytes": self.weights.bytes, "origin": self.weights.origin,
                        "lines": [line.to_dict() for line in self.weights.lines]},
            "overheads": {"bytes": self.overhead_bytes,
                          "lines": [line.to_dict() for line in self.overheads]},
            "kv_cache": self._kv_cache(),
            "fits": self.fits,
            "missing_bytes": self.missing_bytes,
            "refusal": self.refusal._asdict() if self.refusal else None,
            "notes": [note._asdict() for note in self.notes],
        }

    def _kv_cache(self) -> dict[str, Any]:
        cells, pools = self.cells, self.pools
        return {"bytes": pools.kv_bytes, "bytes_per_token": self.bytes_per_token,
                "lines": [line.to_dict() for line in (*cells.full, *cells.window)],
                "page_tokens": self.page_tokens, "tokens": pools.tokens,
                "window_tokens": pools.window_tokens, "state_slots": pools.state_slots,
                "state": cells.state.to_dict() if cells.state else None,
                "requests": pools.requests, "largest_context": self.largest_context}


def _settings(found: Settings) -> dict[str, Any]:
    return {"mem_fraction_static": found.mem_fraction,
            "chunked_prefill_size": found.chunk_tokens,
            "cuda_graph_max_bs_decode": found.graph_requests,
            "prefill_graphs": len(found.prefill_graphs),
            "reserved": [part._asdict() for part in found.reserved]}
