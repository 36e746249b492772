"""Does it fit: the engine's share of a GPU minus weights and overheads, in tokens of KV cache."""

from __future__ import annotations

import math
from typing import Any

from quantplan.dispatch.facts import AUTO_LENGTH, Checkpoint, Deployment, Gpu, MemoryFlags, Note
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.trace import Trace
from quantplan.planner.experts import placed
from quantplan.planner.kv_cache import KvCache, kv_cache
from quantplan.planner.lines import EXACT, SPEC, UNKNOWN, BudgetLine, total_bytes
from quantplan.planner.loaded_weights import Loader, weigh_loaded
from quantplan.planner.overheads import estimated_graphs, overhead_lines, overhead_notes
from quantplan.planner.serving import Serving, serving
from quantplan.planner.weights import Quantized, Weights, count_parameters
from quantplan.planner.what_if import WhatIf, kv_without_scheme, what_if
from quantplan.tables.errors import UsageError
from quantplan.tables.memory_loading import memory_rules
from quantplan.tables.record import NamedTuple
from quantplan.tables.versions import default_version

SCHEMA = "quantplan/budget/2"
ENGINE = "vllm"
ASSUMED_CAPABILITY = 90
"""Stands for the GPU when only its memory is given; what it decides is told only where every GPU
decides the same."""


KV_CACHE = "KV cache"
"""The stage that refuses requests for which the KV cache is too small."""


class EngineRefusal(NamedTuple):
    """Why the engine does not start with this deployment, whatever fits."""

    engine: str
    stage: str
    message: str
    hint: str | None

    @property
    def is_too_long(self) -> bool:
        """Return whether only the length of a request is refused: a shorter one starts."""
        return self.stage == KV_CACHE and self.hint is not None

    def line(self) -> str:
        """Return it in one line."""
        return f"{self.engine} does not start ({self.stage}): {' '.join(self.message.split())}"


class Budget(NamedTuple):
    """The memory of one GPU of a deployment; every bytes figure is per rank.

    `kv_bytes` is what is left for the KV cache, negative when weights and overheads are too large;
    an upper bound where an overhead is not known. `graphs` is the engine's estimate of CUDA graphs,
    one of `overheads` where this version subtracts it.
    """

    model: str
    architecture: str
    deployment: Deployment
    flags: MemoryFlags
    serving: Serving
    dtype: str
    memory: BudgetLine
    engine_memory: BudgetLine
    linear_parameters: int
    other_parameters: int
    weights: Weights
    overheads: tuple[BudgetLine, ...]
    kv: KvCache
    what_if: tuple[WhatIf, ...]
    notes: tuple[Note, ...]
    refusal: EngineRefusal | None = None
    graphs: BudgetLine | None = None

    @property
    def version(self) -> str:
        """Return the engine version whose memory rules were used."""
        return self.serving.rules.version

    @property
    def tp(self) -> int:
        """Return the tensor parallel size."""
        return self.deployment.tp

    @property
    def utilization(self) -> float:
        """Return the engine's share of the GPU's memory."""
        return self.serving.utilization

    @property
    def total_parameters(self) -> int:
        """Return the parameters of the whole model."""
        return self.linear_parameters + self.other_parameters

    @property
    def overhead_bytes(self) -> int:
        """Return the sum of the overheads."""
        return total_bytes(self.overheads)

    @property
    def kv_bytes(self) -> int:
        """Return what is available for the KV cache: given, or what weights and overheads leave."""
        given = self.flags.kv_cache_memory_bytes
        if given is not None:
            return given
        return self.engine_memory.bytes - self.weights.bytes - self.overhead_bytes

    @property
    def plus_minus_bytes(self) -> int:
        """Return how far `kv_bytes` may be off, every term off the same way."""
        if self.flags.kv_cache_memory_bytes is not None:
            return 0
        return sum(line.plus_minus_bytes for line in (*self.weights.lines, *self.overheads))

    @property
    def is_upper_bound(self) -> bool:
        """Return whether an overhead is not known, so that less may be left."""
        return any(line.kind == UNKNOWN for line in self.overheads)

    @property
    def max_model_len(self) -> int:
        """Return the longest request: as given, the model's own, or what fits under `auto`."""
        if self.flags.max_model_len == AUTO_LENGTH:
            return max(1, self.largest_context)
        return self.serving.max_model_len

    @property
    def largest_context(self) -> int:
        """Return the longest request that the KV cache holds, up to the model's own limit."""
        return self.kv.largest_context(self.kv_bytes)

    @property
    def kv_tokens(self) -> int:
        """Return the tokens that the engine prints as "GPU KV cache size"."""
        return self.kv.printed_tokens(max(0, self.kv_bytes), self.max_model_len)

    @property
    def max_concurrency(self) -> float:
        """Return the engine's "Maximum concurrency" for requests of `max_model_len`."""
        return self.kv.max_concurrency(max(0, self.kv_bytes), self.max_model_len)

    @property
    def engine(self) -> str:
        """Return the engine's name."""
        return ENGINE

    @property
    def longest_request(self) -> int:
        """Return the tokens of the longest request that is allowed."""
        return self.max_model_len

    @property
    def bytes_per_token(self) -> float:
        """Return what one more token takes of the KV cache."""
        return self.kv.bytes_per_token

    def requests_of(self, tokens: int) -> float:
        """Return how many requests of `tokens` tokens the KV cache holds at once."""
        return self.kv.max_concurrency(max(0, self.kv_bytes), tokens)

    @property
    def missing_bytes(self) -> int:
        """Return what weights, overheads and the least KV cache lack; 0 when they fit."""
        needed = self.least_kv_bytes - self.kv_bytes
        taken = self.weights.bytes + self.overhead_bytes + max(0, self.kv_bytes)
        if self.flags.kv_cache_memory_bytes is not None:
            needed = max(needed, taken - self.memory.bytes)
        return max(0, needed)

    @property
    def least_kv_bytes(self) -> int:
        """Return the bytes of the KV cache that the engine needs to start: one request of the
        length that was asked for, else one block, and the block that it never uses."""
        return self.kv.least_bytes(max(1, self.flags.max_model_len or 0))

    @property
    def fits(self) -> bool:
        """Return whether weights, overheads and the least KV cache fit."""
        return self.missing_bytes == 0

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as plain data of the schema reports/schema/budget.v2.json."""
        from quantplan.planner.budget_data import budget_data

        return {"schema": SCHEMA, **budget_data(self)}


def make_budget(
    checkpoint: Checkpoint, structure: Structure, *, memory_bytes: int,
    memory_source: str = "as given", memory_kind: str = SPEC, dtype: str = "bfloat16",
    deployment: Deployment | None = None, flags: MemoryFlags | None = None,
    gpu: Gpu | None = None, trace: Trace | None = None, version: str | None = None,
    quantized: Quantized | None = None, compare: bool = True,
) -> Budget:
    """Return the budget of one GPU with `memory_bytes` under vLLM `version` (None: the default),
    with `compare` that of other formats beside it.

    `dtype` is the resolved serving dtype; `memory_kind` is "measured" for a driver's figure;
    `trace` says which kernels run, `quantized` is as in weigh(). Raises UsageError for options
    that cannot be or a layer that does not divide over the ranks, NotKnownError for formats, KV
    cache dtypes, drafts and versions without a row, CheckpointError for headers that contradict
    the config.
    """
    deployment, flags = deployment or Deployment(), flags or MemoryFlags()
    device = gpu or Gpu("the GPU", ASSUMED_CAPABILITY)
    _check(memory_bytes, flags.gpu_memory_utilization, deployment.tp)
    rules = memory_rules(ENGINE, version or default_version(ENGINE))
    served = serving(rules, checkpoint, structure, deployment=deployment, flags=flags, gpu=device,
                     memory_bytes=memory_bytes)
    spread = placed(structure, deployment, trace, checkpoint.served_config)
    loader = Loader(deployment, dtype, device.capability, trace, quantized, flags.pp,
                    version=rules.version)
    weights = weigh_loaded(checkpoint, spread, loader)
    lines = overhead_lines(structure, trace, served, deployment=deployment, flags=flags,
                           gpu=device, dtype=dtype)
    resolved = flags._replace(max_model_len=served.max_model_len,
                              max_num_batched_tokens=served.max_num_batched_tokens)
    kv = kv_cache(checkpoint, structure, trace, deployment, resolved, version=rules.version,
                  dtype=dtype, runner=served.runner)
    engine = engine_memory(memory_bytes, served, memory_kind)
    memory = BudgetLine("GPU memory", memory_bytes, f"{memory_bytes:,} bytes", memory_source,
                        memory_kind)
    return Budget(
        checkpoint.name, structure.architecture, deployment, flags, served, dtype, memory, engine,
        *count_parameters(structure), weights, lines, kv,
        () if not compare else what_if(spread, engine.bytes - total_bytes(lines), kv_without_scheme(
            kv, checkpoint, structure, deployment, resolved, version=rules.version, dtype=dtype),
            config=checkpoint.text_config, loader=loader,
            max_model_len=served.max_model_len),
        (*weights.notes, *kv.notes,
         *overhead_notes(structure, served, flags.pp, lines)),
        graphs=estimated_graphs(structure, served, flags.pp))


def engine_memory(memory_bytes: int, served: Serving, kind: str = SPEC) -> BudgetLine:
    """Return what the engine takes of a GPU's memory: memory * utilization, rounded up."""
    return BudgetLine("engine memory", math.ceil(memory_bytes * served.utilization),
                      f"{memory_bytes:,} bytes x {served.utilization:g}, rounded up",
                      f"vllm {served.rules.version} v1/worker/utils.py:request_memory", kind)


def _check(memory_bytes: int, utilization: float | None, tp: int) -> None:
    if type(memory_bytes) is not int or memory_bytes <= 0:
        raise UsageError("GPU memory", wanted="a positive number of bytes",
                         found=repr(memory_bytes))
    if utilization is not None and (
            not isinstance(utilization, (int, float)) or not 0 < utilization <= 1):
        raise UsageError("--gpu-memory-utilization", wanted="more than 0 and at most 1",
                         found=repr(utilization), hint="0.92 is the engine's default.")
    if type(tp) is not int or tp < 1:
        raise UsageError("tensor parallel size", wanted="a positive integer", found=repr(tp))


__all__ = ["ENGINE", "EXACT", "Budget", "EngineRefusal", "WhatIf", "make_budget"]
