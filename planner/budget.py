"""Does it fit: the engine's share of the GPU, minus weights, in tokens of KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.facts import Checkpoint, Note
from quantplan.dispatch.formats import what_if_formats
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.weight_format import WeightFormat, read_format
from quantplan.planner.kv_cache import BLOCK_TOKENS, kv_line, kv_notes
from quantplan.planner.lines import SPEC, BudgetLine
from quantplan.planner.weights import Quantized, Weights, count_parameters, weigh, weigh_sizes
from quantplan.tables.errors import UsageError

SCHEMA = "quantplan/budget/1"
DEFAULT_UTILIZATION = 0.92
"""vLLM 0.32.0 config/cache.py:CacheConfig.gpu_memory_utilization."""
ENGINE_SOURCE = "vllm 0.32.0 v1/worker/utils.py:request_memory"
NOT_SUBTRACTED = ("activations", "CUDA graphs", "non-torch memory", "allocator rounding",
                  "rotary tables", "kernel repacking")
"""What the engine takes besides weights; until it is modelled, tokens are an upper bound."""


class WhatIf(NamedTuple):
    """One format of the comparison; `problem` says why it has no figures."""

    format: str
    title: str
    weight_bytes: int = 0
    left_bytes: int = 0
    kv_bytes_per_token: int = 0
    kv_tokens: int = 0
    fits: bool = False
    problem: str | None = None


class EngineRefusal(NamedTuple):
    """Why the engine does not start with this deployment, whatever fits."""

    engine: str
    stage: str
    message: str
    hint: str | None

    def line(self) -> str:
        """Return it in one line."""
        return f"{self.engine} does not start ({self.stage}): {' '.join(self.message.split())}"


class Budget(NamedTuple):
    """The memory of one GPU of a deployment; every bytes figure is per tensor-parallel rank.

    `kv_tokens` is an upper bound: NOT_SUBTRACTED has still to come out of `left_bytes`, which is
    negative when the weights alone are too large.
    """

    model: str
    architecture: str
    tp: int
    dtype: str
    memory: BudgetLine
    engine_memory: BudgetLine
    utilization: float
    linear_parameters: int
    other_parameters: int
    weights: Weights
    kv_per_token: BudgetLine
    what_if: tuple[WhatIf, ...]
    notes: tuple[Note, ...]
    refusal: EngineRefusal | None = None

    @property
    def total_parameters(self) -> int:
        """Return the parameters of the whole model."""
        return self.linear_parameters + self.other_parameters

    @property
    def left_bytes(self) -> int:
        """Return the engine's memory minus the weights."""
        return self.engine_memory.bytes - self.weights.bytes

    @property
    def kv_tokens(self) -> int:
        """Return the most tokens that the KV cache could hold."""
        return tokens_in(self.left_bytes, self.kv_per_token.bytes)

    @property
    def kv_block_tokens(self) -> int:
        """Return the same in whole blocks of 16 tokens, as the engine allocates them."""
        return self.kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS

    @property
    def fits(self) -> bool:
        """Return whether the weights and at least one block of KV cache fit."""
        return self.kv_block_tokens > 0

    @property
    def missing_bytes(self) -> int:
        """Return the bytes that the weights and one block of KV cache lack; 0 when they fit."""
        return 0 if self.fits else BLOCK_TOKENS * self.kv_per_token.bytes - self.left_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as plain data of the schema reports/schema/budget.v1.json."""
        return {
            "schema": SCHEMA,
            "model": {"name": self.model, "architecture": self.architecture,
                      "format": self.weights.title, "linear_parameters": self.linear_parameters,
                      "other_parameters": self.other_parameters,
                      "total_parameters": self.total_parameters},
            "deployment": {"tp": self.tp, "dtype": self.dtype, "utilization": self.utilization},
            "memory": self.memory.to_dict(),
            "engine_memory": self.engine_memory.to_dict(),
            "weights": {"bytes": self.weights.bytes, "origin": self.weights.origin,
                        "lines": [line.to_dict() for line in self.weights.lines]},
            "kv_cache": {"per_token": self.kv_per_token.to_dict(), "tokens": self.kv_tokens,
                         "block_tokens": BLOCK_TOKENS, "tokens_in_blocks": self.kv_block_tokens},
            "left_bytes": self.left_bytes,
            "fits": self.fits,
            "refusal": self.refusal._asdict() if self.refusal else None,
            "missing_bytes": self.missing_bytes,
            "not_subtracted": list(NOT_SUBTRACTED),
            "what_if": [row._asdict() for row in self.what_if],
            "notes": [note._asdict() for note in self.notes],
        }


def tokens_in(left_bytes: int, bytes_per_token: int) -> int:
    """Return the whole tokens that fit into `left_bytes`, 0 when it is negative."""
    return max(0, left_bytes // bytes_per_token)


def make_budget(
    checkpoint: Checkpoint, structure: Structure, *, memory_bytes: int,
    memory_source: str = "as given", memory_kind: str = SPEC,
    utilization: float = DEFAULT_UTILIZATION, tp: int = 1, dtype: str = "bfloat16",
    kv_cache_dtype: str = "auto", quantized: Quantized | None = None,
) -> Budget:
    """Return the budget of one GPU with `memory_bytes`, one of `tp` that share the model.

    `dtype` is the resolved serving dtype, `kv_cache_dtype` the requested one; `memory_kind` is
    "measured" for a driver's figure; `quantized` is as in weigh(). Raises UsageError for options
    that cannot be or a layer that does not divide over the ranks, NotKnownError for formats and KV
    cache dtypes without a row, CheckpointError for headers that contradict the config.
    """
    _check(memory_bytes, utilization, tp)
    weights = weigh(checkpoint, structure, tp=tp, dtype=dtype, quantized=quantized)
    config = checkpoint.served_config
    kv = kv_line(config, structure, tp=tp, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    linear, other = count_parameters(structure)
    engine = engine_memory(memory_bytes, utilization, memory_kind)
    memory = BudgetLine("GPU memory", memory_bytes, f"{memory_bytes:,} bytes", memory_source,
                        memory_kind)
    others = what_if(structure, engine.bytes, tp=tp, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    notes = (*weights.notes, *kv_notes(config))
    return Budget(checkpoint.name, structure.architecture, tp, dtype, memory, engine, utilization,
                  linear, other, weights, kv, others, notes)


def engine_memory(memory_bytes: int, utilization: float, kind: str = SPEC) -> BudgetLine:
    """Return what the engine takes of a GPU's memory: memory * utilization, rounded up."""
    return BudgetLine("engine memory", math.ceil(memory_bytes * utilization),
                      f"{memory_bytes:,} bytes x {utilization:g}, rounded up", ENGINE_SOURCE, kind)


def _check(memory_bytes: int, utilization: float, tp: int) -> None:
    if type(memory_bytes) is not int or memory_bytes <= 0:
        raise UsageError("GPU memory", wanted="a positive number of bytes",
                         found=repr(memory_bytes))
    if not isinstance(utilization, (int, float)) or not 0 < utilization <= 1:
        raise UsageError("--gpu-memory-utilization", wanted="more than 0 and at most 1",
                         found=repr(utilization), hint="0.92 is the engine's default.")
    if type(tp) is not int or tp < 1:
        raise UsageError("tensor parallel size", wanted="a positive integer", found=repr(tp))


def what_if(
    structure: Structure, engine_bytes: int, *, tp: int, dtype: str, kv_cache_dtype: str
) -> tuple[WhatIf, ...]:
    """Return the same model in other formats, in 16 bits where the serving dtype has 32."""
    served = "bfloat16" if dtype == "float32" else dtype
    kv = kv_line({}, structure, tp=tp, dtype=served, kv_cache_dtype=kv_cache_dtype)
    return tuple(_what_if(row, structure, engine_bytes, kv.bytes, tp=tp, dtype=served)
                 for row in what_if_formats())


def _what_if(
    row: Mapping[str, Any], structure: Structure, engine_bytes: int, kv_bytes: int, *, tp: int,
    dtype: str,
) -> WhatIf:
    weights: WeightFormat | None = read_format({"quantization_config": row.get("config")})
    try:
        lines = weigh_sizes(structure, weights, tp, dtype)
    except UsageError as error:
        return WhatIf(row["id"], row["title"], problem=error.what)
    weight_bytes = sum(line.bytes for line in lines)
    left = engine_bytes - weight_bytes
    tokens = tokens_in(left, kv_bytes)
    return WhatIf(row["id"], row["title"], weight_bytes, left, kv_bytes, tokens,
                  tokens >= BLOCK_TOKENS)
