"""`quantplan.budget`: what fits of a model in a GPU's memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from quantplan.api import open_gpu
from quantplan.dispatch.facts import Gpu
from quantplan.dispatch.time_limit import limited
from quantplan.engines import asked, asked_model
from quantplan.memory_flags import check_engine, memory_flags
from quantplan.options import checked
from quantplan.planner.memory_question import MemoryQuestion
from quantplan.stand_in import open_table, stand_in_notes
from quantplan.tables.errors import UsageError

if TYPE_CHECKING:
    from quantplan.planner.budget import Budget
    from quantplan.planner.sglang_budget import SglangBudget


def budget(
    model: str | os.PathLike[str] | Mapping[str, Any],
    *,
    gpu_mem: str | int | None = None,
    gpu_memory_utilization: float | None = None,
    max_model_len: int | str | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    enforce_eager: bool = False,
    enable_prefix_caching: bool | None = None,
    kv_cache_memory_bytes: int | str | None = None,
    num_gpu_blocks_override: int | None = None,
    pp: int = 1,
    dcp: int = 1,
    speculative_config: Mapping[str, Any] | None = None,
    limit_mm_per_prompt: Mapping[str, Any] | None = None,
    mem_fraction_static: float | None = None,
    chunked_prefill_size: int | None = None,
    max_running_requests: int | None = None,
    max_total_tokens: int | None = None,
    context_length: int | None = None,
    cuda_graph_max_bs_decode: int | None = None,
    disable_cuda_graph: bool = False,
    swa_full_tokens_ratio: float | None = None,
    mamba_full_memory_ratio: float | None = None,
    max_mamba_cache_size: int | None = None,
    attn_dp_size: int = 1,
    dp_size: int = 1,
    enable_dp_attention: bool = False,
    moe_a2a_backend: str = "none",
    disaggregation_mode: str = "null",
    speculative_algorithm: str | None = None,
    speculative_num_draft_tokens: int | None = None,
    **options: Any,
) -> Budget | SglangBudget:
    """Return what fits of `model` in one GPU: weights of one rank, overheads, KV cache tokens.

    The memory is `gpu_mem` ("24GiB", "24 GB", bytes), else that of the GPU asked about, else of
    this machine's GPU. `options` are those of `explain`; the named ones are the engine's flags.
    Raises QuantplanError subclasses.
    """
    own = {name: value for name, value in locals().items() if name not in ("model", "options")}
    question = _question(model, own, options)
    with limited():
        found = question.budget(compare=True)
    return found._replace(notes=(
        *found.notes, *stand_in_notes(question.table, question.version)))


def memory_question(
    model: str | os.PathLike[str] | Mapping[str, Any], **options: Any
) -> MemoryQuestion:
    """Return the question that `budget` answers, to be asked again with changes; `options` are
    those of `budget`. Raises what `budget` raises before anything is counted."""
    bound = signature(budget).bind(model, **options)
    bound.apply_defaults()
    own = dict(bound.arguments)
    return _question(own.pop("model"), own, own.pop("options"))


def _question(
    model: str | os.PathLike[str] | Mapping[str, Any], own: Mapping[str, Any],
    options: Mapping[str, Any],
) -> MemoryQuestion:
    flags = memory_flags(checked(**own))
    given, deployment = asked(model, options)
    check_engine(flags, given["engine"])
    gpu, capability, gpu_mem = given["gpu"], given["capability"], own["gpu_mem"]
    device = (None if gpu is None and capability is None and gpu_mem is not None
              else _gpu_with_memory(gpu, capability))
    version = given["engine_version"]
    table = open_table(given["engine"], version, given["assume_nearest"])
    return MemoryQuestion(asked_model(given), table, deployment, device, flags, gpu_mem, version)


def _gpu_with_memory(gpu: str | None, capability: str | int | float | None) -> Gpu:
    """Return the GPU asked about; where none is named or here, name the way out that needs none."""
    try:
        return open_gpu(gpu, capability)
    except UsageError as error:
        if gpu is not None or capability is not None:
            raise
        raise UsageError(error.what, wanted="--gpu-mem 24GiB, or a GPU", found=error.found,
                         hint=error.hint) from None
