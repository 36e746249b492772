"""A verification for a person: the verdict, the counts, then every difference with both reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantplan.reports.columns import columns
from quantplan.reports.naming import engine_named

LONGEST = 400
"""Characters of one value that are shown; the JSON has all."""

COMPARED = ("agree", "refused", "explained", "disagree")
"""Statuses of cases that both sides answered."""

MOST_REASONS = 20
MOST_DIFFERENCES = 6
"""Differences of one case that are shown: one cause often changes every layer."""

WORDS = {"agree": "agree", "refused": "both refuse", "explained": "explained",
         "disagree": "disagree", "gap": "not known here", "untold": "could not tell"}
"""Status of a case -> the heading of its column."""


def verify_text(found: Mapping[str, Any]) -> str:
    """Return the whole text of a verification (verify.v1.json), ending in a newline."""
    parts = [_verdict(found), _counts(found)]
    parts += [_disagreement(row) for row in found["disagreements"]]
    parts += [_reasons("not known here, and why", found["gaps"]),
              _reasons("both refuse; ours is no answer but a refused question", found["refused"]),
              _reasons("explained: a finding of ours says what the engine answers",
                       found["explained"]),
              _reasons("could not tell: the engine's own answer is missing", found["untold"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(found: Mapping[str, Any]) -> str:
    engine, totals = found["engine"], found["totals"]
    compared = sum(totals[status] for status in COMPARED)
    wrong = totals["disagree"]
    name = engine_named(engine["name"], engine["version"])
    head = (f"{name}: {wrong} disagreement{'' if wrong == 1 else 's'} in "
            f"{compared} compared of {found['cases']} cases")
    if engine["table"] == engine["version"]:
        return head
    return (f"{head}\n{name} has no table: this compares it with the table of "
            f"{engine['table']}, and differences may be the version's.")


def _counts(found: Mapping[str, Any]) -> str:
    kinds = found["kinds"]
    shown = [status for status in WORDS if status in ("agree", "disagree")
             or found["totals"][status]]
    rows = [[kind, *(counts[status] or None for status in shown)]
            for kind, counts in kinds.items()]
    if len(rows) > 1:
        rows.append(["total", *(found["totals"][status] for status in shown)])
    return columns(rows, ["kind", *(WORDS[status] for status in shown)], "l" + "r" * len(shown))


def _disagreement(row: Mapping[str, Any]) -> str:
    case = row["case"]
    words = [f"{name}={value}" for name, value in {
        "capability": case.get("capability"), **case.get("options", {}), **case.get("env", {}),
        **case.get("libs", {})}.items() if value is not None]
    lines = [f"case {row['id']} ({row['kind']}): {' '.join(words)}"]
    for difference in row["differences"][:MOST_DIFFERENCES]:
        lines += _difference(difference)
    left = len(row["differences"]) - MOST_DIFFERENCES
    return "\n".join(lines if left <= 0 else [*lines, f"  and {left} more differences"])


def _difference(row: Mapping[str, Any]) -> Iterator[str]:
    indices = f" [{', '.join(map(str, row['indices']))}]" if row["indices"] else ""
    where = f"{row['where']}{indices}: " if row["where"] else ""
    yield f"  {where}{row['field']}"
    yield f"    ours    {_short(row['ours'])}"
    yield from _because(row["our_reason"], row["our_source"])
    yield f"    engine  {_short(row['engines'])}"
    yield from _because(row["engine_reason"], None)


def _because(reason: str | None, source: str | None) -> Iterator[str]:
    if reason or source:
        yield f"            {_short(reason or 'no reason')}" + (f"   [{source}]" if source else "")


def _short(value: Any) -> str:
    text = " | ".join(str(value).splitlines())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _reasons(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    shown = [[row["cases"], _short(row["reason"]), f"e.g. {row['example']}"]
             for row in rows[:MOST_REASONS]]
    more = f"\n  and {len(rows) - MOST_REASONS} more" if len(rows) > MOST_REASONS else ""
    return f"{title}:\n{columns(shown, align='r')}{more}"
