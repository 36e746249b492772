"""SGLang's budget as text: verdict, the server's settings, weights, memory, pools."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.planner.lines import EXACT, MODELLED
from quantplan.planner.segments import bar_of
from quantplan.planner.sglang_budget import SglangBudget
from quantplan.reports.columns import columns
from quantplan.reports.memory_bar import PICTURE, memory_bars
from quantplan.reports.notes_text import notes_text, refusal_text
from quantplan.reports.sizes_text import gib, kib


def sglang_budget_text(budget: SglangBudget) -> str:
    """Return the budget as lines of text that end with a newline; no colour."""
    return "\n\n".join(_sections(budget)) + "\n"


def _sections(budget: SglangBudget) -> Iterator[str]:
    if budget.refusal:
        yield refusal_text(budget.refusal)
    yield _verdict(budget)
    yield memory_bars((bar_of(budget),), PICTURE)
    yield _memory(budget)
    yield _weights(budget)
    yield _pools(budget)
    yield _settings(budget)
    if budget.notes:
        yield notes_text(budget.notes)


def _verdict(budget: SglangBudget) -> str:
    subject = (f"{budget.model} ({budget.weights.title}, tp {budget.tp}) on SGLang "
               f"{budget.version}")
    share = f"{gib(budget.memory.bytes)} GiB at --mem-fraction-static {_fraction(budget)}"
    if not budget.fits:
        return f"{subject} does not fit {share}: {gib(budget.missing_bytes)} GiB are missing."
    fits = "would fit" if budget.refusal else "fits"
    return (f"{subject} {fits} {share}: max_total_num_tokens={budget.kv_tokens:,}, "
            f"max_running_requests={budget.pools.requests:,}.")


def _fraction(budget: SglangBudget) -> str:
    return f"{budget.settings.mem_fraction:.4g}"


def _memory(budget: SglangBudget) -> str:
    rows: list[list[object]] = [
        ["GPU memory", gib(budget.memory.bytes), budget.memory.kind, budget.memory.source],
        ["weights", gib(budget.weights.bytes), EXACT, f"from {budget.weights.origin}"]]
    rows += [[line.name, gib(line.bytes), line.kind, line.formula] for line in budget.overheads]
    rows.append(["pool of tokens", gib(budget.kv_bytes), MODELLED, "what is left"])
    return f"Memory of one GPU\n{columns(rows, ['', 'GiB', 'kind', 'counted as'], 'lrll')}"


def _weights(budget: SglangBudget) -> str:
    rows: list[list[object]] = [[line.name, gib(line.bytes), line.kind, line.formula]
                                for line in budget.weights.lines]
    return f"Weights of one rank\n{columns(rows, ['', 'GiB', 'kind', 'counted as'], 'lrll')}"


def _pools(budget: SglangBudget) -> str:
    cells, pools = budget.cells, budget.pools
    words = [f"KV cache: {kib(round(budget.bytes_per_token))} per token, pages of "
             f"{budget.page_tokens}"]
    words += [f"  {line.name}: {line.formula} = {line.bytes:,} bytes"
              for line in (*cells.full, *cells.window)]
    if pools.window_tokens is not None:
        words.append(f"  window pool: {pools.window_tokens:,} tokens")
    if pools.state_slots is not None:
        words.append(f"  state pool: max_mamba_cache_size {pools.state_slots:,}")
    words.append(f"  one request holds at most {budget.largest_context:,} of the model's "
                 f"{budget.context_tokens:,} tokens")
    return "\n".join(words)


def _settings(budget: SglangBudget) -> str:
    found = budget.settings
    graphs = f"{len(found.prefill_graphs)} prefill graphs" if found.prefill_graphs else (
        "no prefill graphs")
    decode = f"decode graphs up to {found.graph_requests} requests" if found.graph_requests else (
        "no decode graphs")
    head = f"Server: chunked_prefill_size={found.chunk_tokens}, {decode}, {graphs}"
    rows: list[list[object]] = [[part.name, f"{part.mib:,.0f}", part.formula]
                                for part in found.reserved]
    return f"{head}\n{columns(rows, ['reserved', 'MiB', 'counted as'], 'lrl')}" if rows else head
