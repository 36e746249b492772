"""What people ask of a budget, as text: levers, ways to share GPUs, and a share for some users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quantplan.planner.choices import Choice
from quantplan.planner.formats_compared import FormatRow
from quantplan.planner.gpu_fit import Fit
from quantplan.planner.levers import Lever
from quantplan.planner.searches import Users
from quantplan.reports.columns import columns
from quantplan.reports.naming import engine_named
from quantplan.reports.sizes_text import gib


def levers_text(levers: Sequence[Lever]) -> str:
    """Return the table of levers, or that there are none."""
    if not levers:
        return "Levers: no flag of the table gains room here."
    rows = [[lever.flag, gib(lever.gained_bytes), f"+{lever.gained_tokens:,}",
             f"{lever.kv_tokens:,}", lever.costs] for lever in levers]
    header = ["", "GiB gained", "tokens", "KV tokens then", "and costs"]
    return ("Levers, each alone (GiB of today's KV cache that it is worth)\n"
            + columns(rows, header, "lrrrl"))


def choices_text(choices: Sequence[Choice]) -> str:
    """Return the ways to share the model over some GPUs."""
    first = choices[0]
    gpus = first.tp * first.pp * first.dp
    rows = [[choice.words, *_figures(choice)] for choice in choices]
    header = ["", "weights GiB per GPU", "KV tokens of all", "linear layers", ""]
    return f"{gpus} GPUs, every way to share the model\n{columns(rows, header, 'lrrll')}"


def _figures(choice: Choice) -> list[object]:
    weights = None if choice.weight_bytes is None else gib(choice.weight_bytes)
    tokens = None if choice.problem or choice.kv_tokens is None else f"{choice.kv_tokens:,}"
    return [weights, tokens, choice.modes, choice.problem]


def users_text(found: Users) -> str:
    """Return the smallest share that serves the users, and how many fit as asked."""
    asked = f"{found.users:,} requests of {found.context_tokens:,} tokens at once"
    now = f"As asked, {found.most_users:,.2f} such requests fit at once."
    if found.share is None:
        why = f" ({found.problem})" if found.problem else ""
        return f"{asked}: not with the whole GPU{why}. {now}"
    return f"{asked}: {found.flag} {found.share:g} or more. {now}"


def formats_text(rows: Sequence[FormatRow]) -> str:
    """Return the table of formats and KV cache dtypes."""
    cells = [[row.format, row.kv_cache_dtype,
              None if row.weight_bytes is None else gib(row.weight_bytes),
              None if row.kv_tokens is None else f"{row.kv_tokens:,}", row.modes,
              row.problem or (WEIGHT_ONLY if row.weight_only else None)] for row in rows]
    header = ["--as", "KV dtype", "weights GiB", "KV tokens", "linear layers", ""]
    return "The same model in other formats\n" + columns(cells, header, "llrrll")


WEIGHT_ONLY = "weight-only: saves memory, no speed at large batches"


def fits_text(fits: Sequence[Fit]) -> str:
    """Return a line per GPU: its memory, and the KV tokens of each engine or why there are none."""
    engines = list(dict.fromkeys((fit.engine, fit.version) for fit in fits))
    by_gpu: dict[str, dict[tuple[str, str], Fit]] = {}
    for fit in fits:
        by_gpu.setdefault(fit.gpu.name, {})[fit.engine, fit.version] = fit
    rows = [[name, gib(next(iter(found.values())).gpu.memory_bytes or 0),
             *(_fit_words(found[engine]) for engine in engines)]
            for name, found in by_gpu.items()]
    header = ["GPU", "GiB", *(engine_named(name, version) for name, version in engines)]
    return "KV tokens of one rank's GPU\n" + columns(rows, header, "lr")


def fits_data(fits: Sequence[Fit]) -> dict[str, Any]:
    """Return the fits as plain data of the schema reports/schema/fit.v1.json."""
    return {"schema": "quantplan/fit/1", "fits": [
        {**fit._asdict(), "gpu": {"name": fit.gpu.name, "memory_bytes": fit.gpu.memory_bytes}}
        for fit in fits]}


def _fit_words(fit: Fit) -> str:
    if fit.problem or fit.kv_tokens is None:
        known = f"{fit.engine} {fit.version} does not start "
        return "no: " + " ".join(str(fit.problem).split()).removeprefix(known)[:60]
    return f"{fit.kv_tokens:,}"
