"""A budget as text: verdict, weight bill, KV cache, the same model in other formats."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.planner.budget import NOT_SUBTRACTED, Budget, WhatIf
from quantplan.planner.kv_cache import BLOCK_TOKENS
from quantplan.planner.lines import EXACT
from quantplan.reports.columns import columns
from quantplan.reports.sizes_text import gb, gib, kib


def budget_text(budget: Budget) -> str:
    """Return the budget as lines of text that end with a newline; no colour."""
    return "\n\n".join(_sections(budget)) + "\n"


def _sections(budget: Budget) -> Iterator[str]:
    if budget.refusal:
        hint = f"\n  next: {budget.refusal.hint}" if budget.refusal.hint else ""
        yield f"{budget.refusal.line()}{hint}"
    yield _verdict(budget)
    yield _weights(budget)
    yield _memory(budget)
    if budget.what_if:
        yield _what_if(budget)
    if budget.notes:
        yield "\n".join(f"note: {note.message}." + (f" {note.hint}" if note.hint else "")
                        for note in budget.notes)
    yield (f"Not yet subtracted: {', '.join(NOT_SUBTRACTED)}.\n"
           "The engine therefore starts with fewer tokens than these.")


def _verdict(budget: Budget) -> str:
    subject = f"{budget.model} ({budget.weights.title}, tp {budget.tp})"
    share = f"{gib(budget.memory.bytes)} GiB x {budget.utilization:g}"
    if not budget.fits:
        return (f"{subject} does not fit {share}: {gib(budget.missing_bytes)} GiB are missing for "
                "the weights and one block of KV cache.")
    return (f"{subject} fits {share}: {gib(budget.left_bytes)} GiB are left for KV cache, "
            f"at most {budget.kv_tokens:,} tokens.")


def _weights(budget: Budget) -> str:
    rows: list[list[object]] = [
        [line.name, gb(line.bytes), gib(line.bytes), line.kind, line.formula]
        for line in budget.weights.lines]
    rows.append(["total", gb(budget.weights.bytes), gib(budget.weights.bytes), EXACT])
    table = columns(rows, ["", "GB", "GiB", "kind", "counted as"], "lrrll")
    linear, other = budget.linear_parameters, budget.other_parameters
    return (f"Weights of one rank, from {budget.weights.origin}\n{table}\n"
            f"  parameters: {linear:,} linear + {other:,} other = {linear + other:,}")


def _memory(budget: Budget) -> str:
    memory, engine, kv = budget.memory, budget.engine_memory, budget.kv_per_token
    rows: list[list[object]] = [
        ["GPU memory", gb(memory.bytes), gib(memory.bytes), memory.kind, memory.source],
        ["engine memory", gb(engine.bytes), gib(engine.bytes), engine.kind, engine.formula],
        ["left after weights", gb(budget.left_bytes), gib(budget.left_bytes), engine.kind]]
    return (f"Memory of one GPU\n{columns(rows, ['', 'GB', 'GiB', 'kind'], 'lrrll')}\n\n"
            f"KV cache: {kib(kv.bytes)} per token ({kv.kind})\n  {kv.formula}\n"
            f"  at most {budget.kv_tokens:,} tokens, {budget.kv_block_tokens:,} in whole blocks of "
            f"{BLOCK_TOKENS} ({engine.kind})")


def _what_if(budget: Budget) -> str:
    rows = [_what_if_row(row) for row in budget.what_if]
    header = ["--as", "format", "weights GB", "GiB", "left GiB", "KV tokens at most"]
    per_token = kib(budget.what_if[0].kv_bytes_per_token)
    served = ", served in bfloat16" if budget.dtype == "float32" else ""
    return (f"The same model in other formats{served} (weights {EXACT}, left and tokens "
            f"{budget.engine_memory.kind}; KV cache {per_token} per token)\n"
            + columns(rows, header, "llrrrr"))


def _what_if_row(row: WhatIf) -> list[object]:
    if row.problem:
        return [row.format, row.title, None, None, None, row.problem]
    tokens = f"{row.kv_tokens:,}" if row.fits else "does not fit"
    return [row.format, row.title, gb(row.weight_bytes), gib(row.weight_bytes),
            gib(row.left_bytes), tokens]
