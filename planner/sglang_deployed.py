"""SGLang's budget for one deployment: settings, what is measured, weights and pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import (
    Checkpoint,
    Deployment,
    Gpu,
    MemoryFlags,
    Note,
    capability_family,
)
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.resolve import resolve
from quantplan.dispatch.sglang.attention import Attention, server_attention
from quantplan.dispatch.sglang.models import ENGINE, built, lifted, model_row
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.trace import Refusal, Trace
from quantplan.planner.budget import ASSUMED_CAPABILITY, EngineRefusal
from quantplan.planner.deployed import gpu_memory, start_refusal
from quantplan.planner.experts import placed
from quantplan.planner.lines import MEASURED, MODELLED, BudgetLine, total_bytes
from quantplan.planner.loaded_weights import Loader, weigh_loaded
from quantplan.planner.sglang_budget import SglangBudget
from quantplan.planner.sglang_cells import Attended, Cells, cells
from quantplan.planner.sglang_context import context_tokens, longer_context
from quantplan.planner.sglang_groups import grouped
from quantplan.planner.sglang_pools import (
    GIB,
    Pools,
    Refused,
    Room,
    most_requests,
    pools,
    token_bytes,
)
from quantplan.planner.sglang_settings import encoder_cache, memory_facts, settings
from quantplan.planner.stages import PARTITION, stages
from quantplan.planner.weights import Weights, count_parameters
from quantplan.tables.errors import EngineRefusalError, NotKnownError, UsageError
from quantplan.tables.record import NamedTuple

Table = Mapping[str, Any]
STAGE = "memory"


class Asked(NamedTuple):
    """One question: the version's rules of memory, the checkpoint, the device and its memory, what
    the server chose, and the facts of memory."""

    rules: Mapping[str, Any]
    checkpoint: Checkpoint
    structure: Structure
    weighed: Structure
    deployment: Deployment
    flags: MemoryFlags
    device: Gpu
    memory: BudgetLine
    attention: Attention
    facts: Mapping[str, Any]
    trace: Trace
    kv_dtype: str


def sglang_budget(
    checkpoint: Checkpoint, table: Table, deployment: Deployment, gpu: Gpu | None,
    flags: MemoryFlags, *, gpu_mem: str | int | None,
) -> SglangBudget:
    """Return SGLang's budget of `checkpoint`, with the engine's refusal if it has one.

    Raises UsageError when no memory is known, NotKnownError for pools, drafts and weights that are
    not in the tables, EngineRefusalError when the engine refuses what cannot be weighed either.
    """
    checkpoint = lifted(table, checkpoint)
    memory_bytes, source, kind = gpu_memory(gpu, gpu_mem)
    device = (gpu or Gpu("the GPU", ASSUMED_CAPABILITY))._replace(memory_bytes=memory_bytes)
    trace = resolve(checkpoint, table, device, deployment)
    refusal = start_refusal(trace, gpu)
    _check_known(table["memory"], flags)
    try:
        attention = server_attention(table, checkpoint, device, deployment)
    except Refusal as error:
        raise EngineRefusalError(refusal.line() if refusal else str(error)) from None
    row = model_row(table, checkpoint)
    if not row:
        raise EngineRefusalError(refusal.line(), hint=refusal.hint) if refusal else (
            NotKnownError("SGLang's pools of a model without a class of its own"))
    structure = built(checkpoint, row)
    asked = Asked(
        table["memory"], checkpoint, structure, grouped(
            table["memory"], _weighed(checkpoint, structure), deployment.tp, flags),
        deployment, flags,
        device, BudgetLine("GPU memory", memory_bytes, f"{memory_bytes:,} bytes", source, kind),
        attention, memory_facts(attention.facts, checkpoint, flags), trace,
        _kv_dtype(table, trace))
    mib = device.memory_mib if gpu_mem is None and device.memory_mib else memory_bytes >> 20
    try:
        found = _filled(asked, mib, _weights(asked))
    except UsageError:
        if refusal:
            raise EngineRefusalError(refusal.line(), hint=refusal.hint) from None
        raise
    return found._replace(refusal=refusal or found.refusal,
                          notes=(*found.weights.notes, *_notes(gpu, asked), *_idle_flags(found)))


def _check_known(rules: Mapping[str, Any], flags: MemoryFlags) -> None:
    """Raise NotKnownError for what cannot be weighed."""
    algorithm = flags.speculative_algorithm
    if algorithm is not None and most_requests(rules, flags) is None:
        raise NotKnownError(f"the draft's weights and layers of --speculative-algorithm "
                            f"{algorithm}", hint="Drop --speculative-algorithm: the answer is "
                            "then of the target model alone.")


def _filled(asked: Asked, memory_mib: int, weights: Weights) -> SglangBudget:
    """Return the budget with the refusal of the pools, if they have one."""
    rules, flags, memory = asked.rules, asked.flags, asked.memory
    tp, config = asked.deployment.tp, asked.checkpoint.text_config
    served = settings(rules, asked.facts, asked.checkpoint, flags, memory_mib=memory_mib, tp=tp)
    held = cells(asked.structure, Attended(
        rules, asked.facts, config, asked.kv_dtype, asked.attention.kv_dtype,
        tp // flags.attention_groups, _stage_layers(asked)))
    derived = context_tokens(rules, config)
    before = tuple(_measured(asked, "runtime", "ranks"))
    loading = tuple(_measured(asked, "loading"))
    cache = encoder_cache(rules, asked.facts)
    free = memory.bytes - total_bytes(before)
    room = Room(free / GIB, (free - weights.bytes - total_bytes(loading)) / GIB,
                served.mem_fraction, (cache["mib"] / 1024) if cache else 0.0,
                asked.attention.page_size, flags.context_length or derived,
                bool(asked.facts.get("model.extra_buffer")))
    filled = pools(rules, held, room, flags)
    refused = longer_context(rules, derived, flags.context_length, asked.deployment.env
                             ) or filled.refused
    lines = (*before, *loading, *_states(held, filled), *_encoders(cache))
    kept = _kept(asked, filled, room, memory.bytes - weights.bytes - total_bytes(lines))
    return SglangBudget(
        asked.checkpoint.name, asked.structure.architecture, asked.trace.version, tp,
        asked.trace.dtype, memory, count_parameters(asked.weighed), weights, (*lines, kept),
        served, held, filled, token_bytes(rules, held, flags), room.page, room.context, flags,
        refusal=_refusal(asked.trace, refused))


def _kv_dtype(table: Table, trace: Trace) -> str:
    """Return the dtype of the cache: as asked for, else 16 bits, where the engine ends before it
    decides."""
    known = (trace.kv_cache["resolved"], trace.dtype, "bfloat16")
    name = str(next(name for name in known if name not in (None, "auto")))
    return str(table["kv_dtypes"].get(name, name))


def _stage_layers(asked: Asked) -> int | None:
    """Return the layers of the pipeline stage that has most, None of a single one: every rank has
    as many tokens as the poorest, and as little memory
    (mem_cache/kv_cache_configurator.py:KVCacheConfigurator._apply_token_constraints)."""
    layers, pp = asked.structure.num_layers, asked.flags.pp
    given = asked.deployment.env.get(PARTITION[ENGINE])
    return None if pp == 1 else max(
        (stage.end or layers) - stage.start for stage in stages(layers, pp, given, ENGINE))


def _measured(asked: Asked, *ids: str) -> Iterator[BudgetLine]:
    """Yield the constants that only a run shows, those of this family of GPUs first."""
    family = capability_family(asked.device.capability)
    for name in ids:
        row = next(row for row in asked.rules["measured"] if row["id"] == name
                   and family in row.get("families", (family,)))
        if asked.deployment.tp * asked.flags.pp >= row.get("from_ranks", 1):
            yield BudgetLine(row["name"], round(row["gib"] * GIB), f"{row['gib']} GiB, give or take"
                             f" {row['plus_minus_gib']}: {row['measured_on']}", row["evidence"],
                             MEASURED, round(row["plus_minus_gib"] * GIB))


def _states(found: Cells, filled: Pools) -> Iterator[BudgetLine]:
    if found.state is not None and filled.state_slots is not None and filled.state_slots > 0:
        slots = filled.state_slots + 1
        yield BudgetLine("state pool", slots * found.state.bytes, f"{slots:,} slots (one is "
                         f"padding) x {found.state.formula}", found.state.source, MODELLED)


def _encoders(cache: Mapping[str, Any] | None) -> Iterator[BudgetLine]:
    if cache is not None:
        yield BudgetLine("cache of embeddings", cache["mib"] << 20, f"{cache['mib']} MiB",
                         cache["source"], MODELLED)


def _kept(asked: Asked, filled: Pools, room: Room, left_bytes: int) -> BudgetLine:
    """Return what stays free for activations and graphs: what --mem-fraction-static leaves out of
    the memory before loading, and of whole bytes what the pools leave."""
    size = round(room.before_gib * (1 - room.fraction) * GIB)
    if filled.refused is None:
        size = left_bytes - filled.kv_bytes
    return BudgetLine("kept for activations and graphs", max(0, size),
                      f"{room.before_gib:.2f} GiB free before loading x (1 - "
                      f"{room.fraction:g})", asked.rules["overfull"]["source"], MODELLED)


def _weighed(checkpoint: Checkpoint, structure: Structure) -> Structure:
    """Return the structure with every weight: SGLang's own family where its rows have all, else
    vLLM's, whose parameters are the same."""
    own = model_structure(checkpoint, structure.architecture, engine=ENGINE, weighed=True)
    return own if own.complete else model_structure(checkpoint, weighed=True)


def _weights(asked: Asked) -> Weights:
    checkpoint, asked_for = asked.checkpoint, asked.deployment.quantization
    own = checkpoint.served_config.get("quantization_config")
    if asked_for is not None and own is None and checkpoint.config.get(
            "compression_config") is None:
        raise NotKnownError(f"the weight bytes of --quantization {asked_for} in SGLang",
                            hint="`quantplan explain` says what the engine does with it.")
    loader = Loader(asked.deployment, asked.trace.dtype, asked.device.capability, asked.trace,
                    _quantized(checkpoint, asked.trace), asked.flags.pp, ENGINE)
    spread = placed(asked.weighed, asked.deployment, asked.trace, checkpoint.served_config)
    return weigh_loaded(checkpoint, spread, loader)


def _quantized(checkpoint: Checkpoint, trace: Trace) -> Callable[[str, int], bool] | None:
    """Return which layers the engine quantizes, from its own rules, when no header says."""
    if checkpoint.tensors is not None or trace.method.resolved is None or trace.error:
        return None
    plain = {layer.path for layer in trace.layers if (layer.method or "").startswith("Unq")}
    return lambda path, index: path.replace("*", str(index)) not in plain


def _refusal(trace: Trace, refused: Refused | None) -> EngineRefusal | None:
    return refused and EngineRefusal(f"{trace.engine} {trace.version}", STAGE, refused.message,
                                     refused.hint)


def _idle_flags(found: SglangBudget) -> Iterator[Note]:
    """Say which flags of a pool are given that the model does not have."""
    state, window = found.cells.state is not None, bool(found.cells.window)
    pools = {"swa_full_tokens_ratio": ("pool of windows", window),
             "mamba_full_memory_ratio": ("pool of states", state),
             "max_mamba_cache_size": ("pool of states", state)}
    for name, (pool, has) in pools.items():
        if getattr(found.flags, name) is not None and not has:
            yield Note("flag-without-effect", f"--{name.replace('_', '-')} changes nothing: this "
                       f"model has no {pool}", severity="info")


def _notes(gpu: Gpu | None, asked: Asked) -> Iterator[Note]:
    if gpu is None:
        yield Note("gpu-not-named", "the attention backend, its pages and the KV cache's dtype are "
                   f"those of a GPU of capability {ASSUMED_CAPABILITY // 10}."
                   f"{ASSUMED_CAPABILITY % 10}", "Name one with --gpu.")
    if asked.weighed.left_out is not None:
        yield asked.weighed.left_out
    if asked.structure.family != asked.weighed.family:
        yield Note("weights-of-another-family", "weights are those that vLLM creates for this "
                   "model class, which SGLang may keep otherwise")
