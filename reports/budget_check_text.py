"""A budget's check as text: verdict, terms side by side, causes."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.reports.budget_check import BudgetCheck
from quantplan.reports.budget_terms import Term
from quantplan.reports.columns import columns
from quantplan.reports.notes_text import notes_text

WORDS = {True: "agrees", False: "disagrees", None: "not predicted"}


def budget_check_text(check: BudgetCheck) -> str:
    """Return the check as lines of text that end with a newline; no colour."""
    return "\n\n".join(_sections(check)) + "\n"


def _sections(check: BudgetCheck) -> Iterator[str]:
    yield _verdict(check)
    if check.terms:
        rows = [_row(term) for term in check.terms]
        yield columns(rows, ["", "predicted", "printed", "gap", "within", ""], "lrrrrl")
    if check.causes:
        yield "Causes\n" + "\n".join(
            f"  {cause.term + ': ' if cause.term else ''}{cause.message}" for cause in check.causes)
    if check.notes:
        yield notes_text(check.notes)


def _verdict(check: BudgetCheck) -> str:
    engine = " ".join(word for word in (check.log.engine, check.log.version) if word)
    subject = f"{check.log.name}: {check.model} on {engine or 'an unknown engine'}"
    if check.problem:
        return f"{subject}\ncould not tell: {check.problem}"
    by = f", by the memory rules of {check.rules}" if check.rules else ""
    off = [term.name for term in check.terms if term.agrees is False]
    return f"{subject}{by}\n{check.verdict}" + (f": {', '.join(off)}" if off else "")


def _row(term: Term) -> list[object]:
    figures = [_figure(value, term.unit) for value in (term.predicted, term.printed)]
    gap = None if term.gap is None else _figure(term.gap, term.unit, sign="+")
    within = None if term.gap is None else _figure(term.tolerance, term.unit)
    where = f" ({term.worker})" if term.worker else ""
    return [f"{term.name}, {term.unit}", *figures, gap, within, WORDS[term.agrees] + where]


def _figure(value: float | None, unit: str, sign: str = "") -> str | None:
    if value is None:
        return None
    return f"{value:{sign},.0f}" if unit == "tokens" else f"{value:{sign},.2f}"
