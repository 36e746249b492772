"""The closed vocabulary of requirements: one predicate both decides and words its reason.

A requirement is a table row with a `fact`, exactly one predicate, an optional `when` (facts that
must have given values for the row to apply) and `says`, the engine's own words on failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from quantplan.tables.record import NamedTuple

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"

Facts = Mapping[str, Any]
"""Fact name -> value. A value of None means: not known from here."""


class Unreadable(NamedTuple):
    """The value of a fact at which the engine raises: its exception type, words and source."""

    type: str
    message: str
    source: str


class Check(NamedTuple):
    """One requirement evaluated: `text` is our sentence, `says` the engine's words on failure,
    `plain` what failing means for people, where the table says so."""

    id: str
    verdict: str
    text: str
    source: str
    says: str | None = None
    fact: str = ""
    plain: str | None = None


def evaluate(row: Mapping[str, Any], facts: Facts, prefix: str, source: str) -> Check | None:
    """Return the check of `row` on `facts`, or None when its `when` says it does not apply."""
    if not applies(row.get("when"), facts):
        return None
    name, predicate = row["fact"], predicate_of(row)
    value, operand = facts[name], row[predicate]
    if predicate == "divides":
        operand = facts[operand]
    passed, rule = PREDICATES[predicate](value, operand)
    verdict = UNKNOWN if value is None or operand is None else PASS if passed else FAIL
    shown = "not known" if value is None else show(name, value)
    text = f"{name} is {shown}; must {_word(name, rule, row, facts)}"
    return Check(f"{prefix}.{name}", verdict, text, row.get("source", source),
                 _filled(row, "says", facts), name, _filled(row, "plain", facts))


def _filled(row: Mapping[str, Any], field: str, facts: Facts) -> str | None:
    return fill(row[field], facts) if field in row else None


def applies(when: Mapping[str, Any] | None, facts: Facts) -> bool:
    """Return whether every fact named in `when` has the given value (or one of a list)."""
    return all(
        facts[name] in wanted if isinstance(wanted, list) else facts[name] == wanted
        for name, wanted in (when or {}).items()
    )


def holds(row: Mapping[str, Any], facts: Facts) -> bool:
    """Return whether a row's `when` applies and every requirement of its `needs` passes."""
    checks = (evaluate(need, facts, "", "") for need in row.get("needs", ()))
    return applies(row.get("when"), facts) and all(
        check is None or check.verdict == PASS for check in checks)


def predicate_of(row: Mapping[str, Any]) -> str:
    """Return the name of the row's one predicate."""
    return next(name for name in PREDICATES if name in row)


def fill(template: str, facts: Facts) -> str:
    """Return `template` with every {fact.name} replaced by that fact's value."""
    return re.sub(r"\{([a-z][\w.]*)\}", lambda m: str(facts[m.group(1)]), template)


def show(name: str, value: Any) -> str:
    """Return a fact's value as people write it: capabilities dotted (families 9.x), flags as true
    and false."""
    if name == "gpu.capability" and isinstance(value, int):
        return f"{value // 10}.{value % 10}"
    if name == "gpu.family" and isinstance(value, int):
        return f"{value // 10}.x"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Unreadable):
        return f"unreadable ({value.message})"
    if isinstance(value, (list, tuple)):
        return ", ".join(show(name, item) for item in value)
    return str(value)


def _word(name: str, rule: str, row: Mapping[str, Any], facts: Facts) -> str:
    predicate = predicate_of(row)
    operand = row[predicate]
    if predicate == "divides":
        return f"divide {operand} ({facts[operand]})"
    suffix = ""
    value = facts[name]
    if predicate == "multiple_of" and isinstance(value, int) and value % operand:
        suffix = f" (remainder {value % operand})"
    return f"{rule} {show(name, operand)}{suffix}"


def _divides(value: Any, operand: Any) -> bool:
    return not value or operand is None or operand % value == 0


PREDICATES: dict[str, Callable[[Any, Any], tuple[bool, str]]] = {
    "min": lambda v, o: (v is not None and v >= o, "be at least"),
    "max": lambda v, o: (v is not None and v <= o, "be at most"),
    "equals": lambda v, o: (v == o, "be"),
    "not_equals": lambda v, o: (v != o, "not be"),
    "in": lambda v, o: (v in o, "be one of"),
    "not_in": lambda v, o: (v not in o, "not be one of"),
    "multiple_of": lambda v, o: (v is not None and v % o == 0, "be a multiple of"),
    "divides": lambda v, o: (_divides(v, o), "divide"),
}
