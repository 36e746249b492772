"""Which operator a layer calls: the first of its method's list whose requirements pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.candidates import alternatives, listed_candidate, mark_considered
from quantplan.dispatch.predicates import FAIL, PASS, UNKNOWN, Facts, evaluate, fill
from quantplan.dispatch.sglang.context import Context, Site, Table
from quantplan.dispatch.trace import Finding, Refusal, Selection, refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]


class Choice(NamedTuple):
    """The selection and the chosen operator's row with its texts filled in; no row where facts
    that are not known decide."""

    selection: Selection
    row: Row | None

    def failure(self, path: str, hint: str | None = None) -> Finding | None:
        """Return how the first forward of the layer at `path` fails, None where it does not."""
        if self.row is None or "fails" not in self.row:
            return None
        return Finding("first forward", "error", "no-operator", f"{path}: the first forward ends "
                       f"with {self.row['fails']}", hint, self.row["source"])

    def text(self, field: str) -> str | None:
        """Return a field of the chosen operator, None where it has none."""
        return None if self.row is None else self.row.get(field)


def chosen(context: Context, list_id: str, own: Facts) -> Choice:
    """Return the choice for a layer with these facts of its own; layers that ask the same share
    it."""
    key = (list_id, *own.items())
    found: Choice | None = context.choices.get(key)
    if found is None:
        found = choose(context.table, list_id, {**context.facts, **own})
        context.choices[key] = found
    return found


def choose(table: Table, list_id: str, facts: Facts) -> Choice:
    """Return the choice from the list; its candidates go by the operators' ids in the list."""
    part = table["operators"][list_id]
    rows = {row["id"]: row for row in part["operators"]}
    candidates = [listed_candidate(name, row, facts, row["source"]) for name, row in rows.items()]
    chosen = next((c.kernel for c in candidates if c.verdict == PASS), None)
    others = alternatives(candidates, chosen)
    marked = tuple(c._replace(kernel=shown_name(rows[c.kernel]))
                   for c in mark_considered(candidates, chosen))
    if chosen is None and not others:
        raise NotKnownError(f"what SGLang runs where no operator of {list_id} fits",
                            found=next(check.text for check in candidates[-1].checks
                                       if check.verdict == FAIL))
    kernel = None if chosen is None else str(rows[chosen]["kernel"])
    named = tuple(other._replace(kernel=str(rows[other.kernel]["kernel"])) for other in others)
    selection = Selection(list_id, kernel, marked, (), named)
    row = None if chosen is None else rows[chosen]
    return Choice(selection, row and {**row, **{name: fill(row[name], facts)
                                                for name in FILLED if name in row}})


FILLED = ("act", "mode", "fails", "runner", "kernel_backend", "because")
"""Fields of an operator that facts are filled into."""


def refused_after_loading(table: Table, list_id: str, facts: Facts, path: str) -> Refusal | None:
    """Return what the weights' post-processing refuses of a layer with these operators."""
    part = table["operators"][list_id]
    for row in part.get("after_loading", ()):
        check = evaluate(row, facts, list_id, part["source"])
        if check is not None and check.verdict == UNKNOWN:
            raise NotKnownError(f"{row['fact']}, which {path} asks after loading",
                                hint="Say whether it is there with --lib.")
        if check is not None and check.verdict == FAIL:
            return refuse("weight loading", "ValueError", str(check.says), path, check.source,
                          hint=f"{check.text}.")
    return None


def unfit(table: Table, operators: str, site: Site) -> Exception | None:
    """Return what ends the start once the weights are loaded: a shape that no rule of the scheme
    looks at and that its one operator cannot take. Its words are not known."""
    for piece in table["ct_pieces"].get(operators, ()):
        size = {"n": site.shard.n, "k": site.shard.k}[piece["of"]]
        if size % piece["multiple_of"]:
            return NotKnownError(
                f"what {piece['operator']} says of {site.path}, whose {piece['of'].upper()} of "
                f"{size} is not a multiple of {piece['multiple_of']}",
                hint="It takes no such layer: choose another tensor parallel size.")
    return None


def shown_name(row: Row) -> str:
    """Return the name of an operator among the candidates of its list."""
    return f"{row['kernel']} ({row['id']})"
