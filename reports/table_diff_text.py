"""What differs between two versions' tables, as text and as data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from quantplan.tables.table_diff import Difference, Reason

MARKS = {"added": "+", "removed": "-", "changed": "~", "reordered": "~"}
LONGEST_VALUE = 200


def table_diff_text(engine: str, old: str, new: str, found: Sequence[Difference]) -> str:
    """Return one line per difference, each with the reasons that the tables give."""
    count = f"{len(found)} difference{'' if len(found) == 1 else 's'}"
    lines = [f"{engine} {old} -> {new}: {count}"]
    for difference in found:
        lines += ["", *difference_lines(difference)]
    return "\n".join(lines) + "\n"


def difference_lines(difference: Difference) -> Iterator[str]:
    """Yield a difference's line, and one per reason."""
    yield f"{MARKS[difference.kind]} {difference_words(difference)}"
    for reason in difference.reasons:
        yield f"    {reason.version}: {reason.because}  [{reason.source}]"


def difference_words(difference: Difference) -> str:
    """Return what differs, in one line without its reasons."""
    at, kind = difference.at, difference.kind
    if kind == "changed":
        return f"{at}: {value_words(difference.old)} -> {value_words(difference.new)}"
    if kind == "reordered":
        old, new = (", ".join(map(value_words, items)) for items in (difference.old,
                                                                     difference.new))
        return f"{at}: the order is {new}; was {old}"
    value = difference.new if kind == "added" else difference.old
    return f"{at}: {value_words(value)}" if not at.endswith("]") or difference.item else at


def value_words(value: Any) -> str:
    """Return a value of a table in one line: text as it is, all else as JSON, cut where long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def table_diff_data(
    engine: str, old: str, new: str, found: Sequence[Difference]
) -> dict[str, Any]:
    """Return the differences as JSON-ready data."""
    return {"schema": "quantplan/tables-diff/1", "engine": engine, "from": old, "to": new,
            "differences": [difference_data(difference) for difference in found]}


def difference_data(difference: Difference) -> dict[str, Any]:
    """Return one difference as JSON-ready data."""
    return {**difference._asdict(), "reasons": [reason_data(r) for r in difference.reasons]}


def reason_data(reason: Reason) -> dict[str, str]:
    """Return a reason as JSON-ready data."""
    return dict(reason._asdict())
