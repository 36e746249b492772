"""What became of the cited code in the next engine version: a checklist for its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from quantplan.tables.engine_check import Bump

STATES = ("changed", "moved", "gone")


def bump_text(engine: str, old: str, new: str, found: Sequence[Bump]) -> str:
    """Return a head with the counts and one line per citation that is not as it was."""
    counts = Counter(bump.state for bump in found)
    told = ", ".join(f"{counts[state]} {state}" for state in ("unchanged", *STATES))
    lines = [f"{engine} {old} -> {new}: {len(found)} cited places: {told}"]
    for state in STATES:
        lines += [_line(bump) for bump in found if bump.state == state]
    return "\n".join(lines) + "\n"


def _line(bump: Bump) -> str:
    now = f" -> {', '.join(bump.now)}" if bump.state == "moved" else ""
    return f"{bump.state:8} {bump.citation.text}{now}  (cited by {bump.citation.by})"


def bump_data(engine: str, old: str, new: str, found: Sequence[Bump]) -> dict[str, Any]:
    """Return all of it as JSON-ready data, unchanged places too."""
    return {"schema": "quantplan/tables-bump/1", "engine": engine, "from": old, "to": new,
            "cited": [{"cited": bump.citation.text, "by": bump.citation.by, "state": bump.state,
                       "now": list(bump.now), "old_hash": bump.old_hash,
                       "new_hash": bump.new_hash} for bump in found]}
