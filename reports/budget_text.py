"""A budget as text: verdict, the terms, the KV cache, the same model in other formats, notes."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.planner.budget import Budget, WhatIf
from quantplan.planner.lines import EXACT, UNKNOWN, BudgetLine
from quantplan.planner.segments import bar_of
from quantplan.reports.columns import columns
from quantplan.reports.memory_bar import PICTURE, memory_bars
from quantplan.reports.notes_text import notes_text, refusal_text
from quantplan.reports.sizes_text import gb, gib, kib


def budget_text(budget: Budget) -> str:
    """Return the budget as lines of text that end with a newline; no colour."""
    return "\n\n".join(_sections(budget)) + "\n"


def _sections(budget: Budget) -> Iterator[str]:
    if budget.refusal:
        yield refusal_text(budget.refusal)
    yield _verdict(budget)
    yield memory_bars((bar_of(budget),), PICTURE)
    yield _terms(budget)
    yield _formulas(budget)
    if budget.what_if:
        yield _what_if(budget)
    if budget.notes:
        yield notes_text(budget.notes)


def _verdict(budget: Budget) -> str:
    subject = f"{budget.model} ({budget.weights.title}, tp {budget.tp})"
    share = f"{gib(budget.memory.bytes)} GiB x {budget.utilization:g}"
    if not budget.fits:
        return (f"{subject} does not fit {share} with vLLM {budget.version}: "
                f"{gib(budget.missing_bytes)} GiB are missing for {_least(budget)}.")
    most = "at most " if budget.is_upper_bound else ""
    shorter = budget.refusal is not None and budget.refusal.is_too_long
    fits = "would fit" if budget.refusal else "fits"
    return (f"{subject} {fits} {share} with vLLM {budget.version}{SHORTER if shorter else ''}: "
            f"{most}{gib(budget.kv_bytes)} GiB of KV cache, {budget.kv_tokens:,} tokens, "
            f"{budget.max_concurrency:.2f} requests of {budget.max_model_len:,} tokens; the "
            f"largest --max-model-len is {budget.largest_context:,}.")


SHORTER = ", but not with requests of the model's own length"


def _least(budget: Budget) -> str:
    asked = budget.flags.max_model_len or 0
    cache = f"a request of {asked:,} tokens" if asked > 0 else "one block of KV cache"
    return f"weights, overheads and {cache}"


def _terms(budget: Budget) -> str:
    rows = [_term("GPU memory", budget.memory.bytes, budget.memory.kind),
            _term(f"engine's share, x {budget.utilization:g}", budget.engine_memory.bytes,
                  budget.engine_memory.kind),
            _term("weights", -budget.weights.bytes, _weights_kind(budget))]
    rows += [_line(line, -line.bytes) for line in budget.overheads]
    given = budget.flags.kv_cache_memory_bytes is not None
    rows.append(_term("KV cache, as given" if given else "left for KV cache", budget.kv_bytes, "",
                      budget.plus_minus_bytes))
    serving = budget.serving
    return (f"Memory of one GPU: {serving.max_num_batched_tokens:,} batched tokens, "
            f"{serving.max_num_seqs:,} sequences, {len(serving.graph_tokens)} graph sizes\n"
            + columns(rows, ["", "GB", "GiB", "+-", "kind"], "lrrrl"))


def _weights_kind(budget: Budget) -> str:
    kinds = {line.kind for line in budget.weights.lines}
    return EXACT if kinds == {EXACT} else ", ".join(sorted(kinds))


def _line(line: BudgetLine, size: int) -> list[object]:
    if line.kind == UNKNOWN:
        return [line.name, "?", "?", None, line.kind]
    return _term(line.name, size, line.kind, line.plus_minus_bytes)


def _term(name: str, size: int, kind: str, plus_minus: int = 0) -> list[object]:
    return [name, gb(size), gib(size), gib(plus_minus) if plus_minus else None, kind]


def _formulas(budget: Budget) -> str:
    linear, other = budget.linear_parameters, budget.other_parameters
    weights = columns([[line.name, gib(line.bytes), line.formula] for line in budget.weights.lines],
                      ["", "GiB", "counted as"], "lrl")
    overheads = columns([[line.name, line.formula] for line in budget.overheads])
    kv = budget.kv
    fixed = (f", {kib(kv.fixed_bytes_per_request)} more per request"
             if kv.fixed_bytes_per_request else "")
    tokens = columns([[line.name, line.formula] for line in kv.lines])
    return (f"Weights of one rank, from {budget.weights.origin}\n{weights}\n"
            f"  parameters: {linear:,} linear + {other:,} other = {linear + other:,}\n\n"
            f"Overheads\n{overheads}\n\n"
            f"KV cache: {kib(kv.bytes_per_token)} per token{fixed}, blocks of {kv.block_tokens} "
            f"tokens\n{tokens}")


def _what_if(budget: Budget) -> str:
    rows = [_what_if_row(row) for row in budget.what_if]
    header = ["--as", "format", "weights GB", "GiB", "KV GiB", "KV tokens"]
    per_token = kib(budget.what_if[0].kv_bytes_per_token)
    served = ", served in bfloat16" if budget.dtype == "float32" else ""
    return (f"The same model in other formats{served} (KV cache {per_token} per token)\n"
            + columns(rows, header, "llrrrr"))


def _what_if_row(row: WhatIf) -> list[object]:
    if row.problem:
        return [row.format, row.title, None, None, None, row.problem]
    tokens = f"{row.kv_tokens:,}" if row.fits else "does not fit"
    return [row.format, row.title, gb(row.weight_bytes), gib(row.weight_bytes),
            gib(row.left_bytes), tokens]
