"""A budget against a start-up log: terms, causes and the verdict."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.facts import Note
from quantplan.reports.budget_gaps import Cause, causes
from quantplan.reports.budget_terms import Term, budget_terms
from quantplan.reports.startup_log import StartupLog
from quantplan.tables.record import NamedTuple

SCHEMA = "quantplan/budget-check/1"
VERDICTS = {"agrees": 0, "disagrees": 1, "could not tell": 4}
"""Verdict -> exit code."""
DECISIVE = ("weights", "KV cache memory", "KV tokens")


class BudgetCheck(NamedTuple):
    """What came of it; `problem` says why nothing was predicted, `rules` whose memory rules were
    used."""

    log: StartupLog
    model: str
    rules: str | None
    terms: tuple[Term, ...]
    causes: tuple[Cause, ...]
    notes: tuple[Note, ...]
    problem: str | None = None

    @property
    def verdict(self) -> str:
        """Return "disagrees" for a term that does, "agrees" where a decisive one does, else "could
        not tell"."""
        if any(term.agrees is False for term in self.terms):
            return "disagrees"
        agreed = any(term.agrees and term.name in DECISIVE for term in self.terms)
        return "agrees" if agreed else "could not tell"

    @property
    def exit_code(self) -> int:
        """Return 0, 1 or 4."""
        return VERDICTS[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain data of the schema reports/schema/budget-check.v1.json."""
        return {
            "schema": SCHEMA, "log": self.log.name, "engine": self.log.engine,
            "version": self.log.version, "rules": self.rules, "model": self.model,
            "verdict": self.verdict, "problem": self.problem,
            "terms": [term.to_dict() for term in self.terms],
            "causes": [cause._asdict() for cause in self.causes],
            "notes": [note._asdict() for note in self.notes]}


def compare(log: StartupLog, model: str, found: Any, notes: tuple[Note, ...] = ()) -> BudgetCheck:
    """Return the check of `found`, an engine's budget, against `log`."""
    terms = budget_terms(log, found)
    rules = f"{log.engine} {getattr(found, 'version', None) or log.version}"
    return BudgetCheck(log, model, rules, terms, causes(log, found, terms),
                       (*log.notes, *notes, *found.notes))


def not_predicted(log: StartupLog, model: str, problem: str) -> BudgetCheck:
    """Return the check where the budget has no answer: what the log printed, and why."""
    from quantplan.reports.budget_terms import printed_terms

    return BudgetCheck(log, model, None, printed_terms(log), (), log.notes, problem)
