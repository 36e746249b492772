"""Which operator a layer calls: the first of its method's list whose requirements pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.candidates import alternatives, mark_considered, verdict_of
from quantplan.dispatch.predicates import PASS, Facts, evaluate, fill
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.trace import Candidate, Selection

Row = Mapping[str, Any]


class Choice(NamedTuple):
    """The selection and the chosen operator's row with its texts filled in; no row where facts
    that are not known decide."""

    selection: Selection
    row: Row | None

    def text(self, field: str) -> str | None:
        """Return a field of the chosen operator, None where it has none."""
        return None if self.row is None else self.row.get(field)


def choose(table: Table, list_id: str, facts: Facts) -> Choice:
    """Return the choice from the list; its candidates go by the operators' ids in the list."""
    part = table["operators"][list_id]
    rows = {row["id"]: row for row in part["operators"]}
    candidates = [_candidate(row, facts) for row in rows.values()]
    chosen = next((c.kernel for c in candidates if c.verdict == PASS), None)
    others = alternatives(candidates, chosen)
    marked = tuple(c._replace(kernel=_name(rows[c.kernel]))
                   for c in mark_considered(candidates, chosen))
    kernel = None if chosen is None else str(rows[chosen]["kernel"])
    named = tuple(other._replace(kernel=str(rows[other.kernel]["kernel"])) for other in others)
    selection = Selection(list_id, kernel, marked, (), named)
    row = None if chosen is None else rows[chosen]
    return Choice(selection, row and {**row, "act": fill(row["act"], facts)})


def _candidate(row: Row, facts: Facts) -> Candidate:
    checks = tuple(check for need in row.get("requires", ())
                   if (check := evaluate(need, facts, row["id"], row["source"])) is not None)
    return Candidate(row["id"], verdict_of(checks), checks, row["source"])


def _name(row: Row) -> str:
    return f"{row['kernel']} ({row['id']})"
