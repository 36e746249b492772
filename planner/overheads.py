"""What the engine takes of its share of a GPU besides weights and KV cache, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Deployment, Gpu, MemoryFlags, Note
from quantplan.dispatch.structure import TEXT, Structure
from quantplan.dispatch.trace import Trace
from quantplan.planner.activations import (
    ASSUMED_MULTIPROCESSORS,
    Run,
    count_lines,
    expert_lines,
    profile_line,
)
from quantplan.planner.graphs import estimate_is_subtracted, graphs_line
from quantplan.planner.lines import MODELLED, UNKNOWN, BudgetLine
from quantplan.planner.parts import dtype_bits
from quantplan.planner.serving import Serving
from quantplan.tables.errors import NotKnownError

WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")
"""Drafts that no model makes (vllm config/speculative.py:SpeculativeConfig)."""


def overhead_lines(
    structure: Structure, trace: Trace | None, serving: Serving, *, deployment: Deployment,
    flags: MemoryFlags, gpu: Gpu, dtype: str,
) -> tuple[BudgetLine, ...]:
    """Return the lines that the engine subtracts besides weights, of the rank that has most.

    Raises NotKnownError for a draft whose memory is not known.
    """
    _check_draft(flags)
    run = Run(structure, serving, deployment.tp, flags.pp, dtype_bits("model", dtype) // 8,
              gpu.sm_count or ASSUMED_MULTIPROCESSORS)
    return (profile_line(run), *expert_lines(run, trace, deployment.expert_parallel),
            *_encoder_lines(run, flags), *count_lines(run), _non_torch_line(serving),
            *_graph_lines(structure, serving, flags.pp))


def _graph_lines(structure: Structure, serving: Serving, pp: int) -> Iterator[BudgetLine]:
    line = estimated_graphs(structure, serving, pp)
    if line is not None and estimate_is_subtracted(serving):
        yield line


def estimated_graphs(structure: Structure, serving: Serving, pp: int) -> BudgetLine | None:
    """Return what the engine estimates CUDA graphs to take, None where it captures none."""
    if not serving.graph_tokens:
        return None
    return graphs_line(serving, -(-structure.num_layers // pp), estimated=True)


def _non_torch_line(serving: Serving) -> BudgetLine:
    rule = serving.rules.rule("non_torch", serving.facts)
    ranks = f"{rule.value:g} GiB of a rank under tp {serving.facts['tp']}, pp {serving.facts['pp']}"
    return BudgetLine("non-torch memory", rule.bytes, ranks, rule.origin, rule.kind,
                      rule.plus_minus_bytes)


def _encoder_lines(run: Run, flags: MemoryFlags) -> Iterator[BudgetLine]:
    """Yield the outputs of a multimodal encoder, which stay through the profile run, and the line
    that its own activations are not known (vllm v1/worker/gpu_model_runner.py:profile_run)."""
    if not has_encoder(run.structure) or _no_items(flags.limit_mm_per_prompt):
        return
    yield BudgetLine("encoder outputs", run.hidden_bytes,
                     f"{run.tokens:,} tokens x {run.structure.sizes['hidden_size']:,} hidden x "
                     f"{run.item_bytes} bytes", "vllm v1/core/encoder_cache_manager.py:"
                     "compute_mm_encoder_budget", MODELLED, run.hidden_bytes)
    yield BudgetLine("encoder activations", 0, "depends on the model's processor",
                     "vllm v1/worker/gpu_model_runner.py:GPUModelRunner.profile_run", UNKNOWN)


def has_encoder(structure: Structure) -> bool:
    """Return whether the model has layers of another stack than its language model's."""
    return any(module.stack != TEXT for module in structure.modules)


def _no_items(limits: Mapping[str, Any] | None) -> bool:
    return bool(limits) and all(count == 0 for count in (limits or {}).values())


def _check_draft(flags: MemoryFlags) -> None:
    """Refuse drafts whose weights and layers are not known."""
    if flags.speculative_config is None:
        return
    method = str(flags.speculative_config.get("method") or "draft model")
    if method not in WITHOUT_WEIGHTS:
        raise NotKnownError(f"the memory of a speculative draft ({method})",
                            wanted=" or ".join(WITHOUT_WEIGHTS),
                            hint="Leave --speculative-config out for the memory without a draft.")


def overhead_notes(
    structure: Structure, serving: Serving, pp: int, lines: tuple[BudgetLine, ...]
) -> Iterator[Note]:
    """Yield what the lines leave out, and what graphs take behind the KV cache's back."""
    if any(line.kind == UNKNOWN for line in lines):
        names = ", ".join(line.name for line in lines if line.kind == UNKNOWN)
        yield Note("overheads-not-known", f"{names}: not known, the KV cache is an upper bound")
    if serving.graph_tokens and not estimate_is_subtracted(serving):
        line = graphs_line(serving, -(-structure.num_layers // pp), estimated=False)
        yield Note("graphs-not-subtracted", f"CUDA graphs take another {line.bytes / 2**30:.2f} "
                   "GiB that this version does not subtract before it sizes the KV cache", None,
                   "info")
