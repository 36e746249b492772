"""What a verification found, as data: the JSON of `quantplan verify`, and what its text is made
from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quantplan.oracle.run import (
    AGREE,
    DISAGREE,
    EXPLAINED,
    GAP,
    REFUSED,
    STATUSES,
    UNTOLD,
    Verdict,
)

SCHEMA = "quantplan/verify/1"
COMPARED = (AGREE, REFUSED, EXPLAINED, DISAGREE)


def summary(verdicts: Iterable[Verdict], table: Mapping[str, Any], asked: str, where: str
            ) -> dict[str, Any]:
    """Return the verification as JSON-ready data (reports/schema/verify.v1.json); `asked` is the
    engine's version, `where` its interpreter."""
    kinds: dict[str, dict[str, int]] = {}
    disagreements: list[dict[str, Any]] = []
    reasons: dict[str, dict[str, list[str]]] = {
        status: {} for status in (REFUSED, EXPLAINED, GAP, UNTOLD)}
    for verdict in verdicts:
        counts = kinds.setdefault(verdict.case.kind, dict.fromkeys(STATUSES, 0))
        counts[verdict.status] += 1
        if verdict.status == DISAGREE:
            disagreements.append(_disagreement(verdict))
        elif verdict.status in reasons:
            reasons[verdict.status].setdefault(str(verdict.reason), []).append(verdict.case.id)
    totals = {status: sum(counts[status] for counts in kinds.values()) for status in STATUSES}
    return {
        "schema": SCHEMA,
        "engine": {"name": table["engine"], "version": asked, "table": table["version"],
                   "python": where},
        "cases": sum(totals.values()), "totals": totals, "kinds": dict(sorted(kinds.items())),
        "disagreements": disagreements,
        "refused": _reasons(reasons[REFUSED]), "explained": _reasons(reasons[EXPLAINED]),
        "gaps": _reasons(reasons[GAP]), "untold": _reasons(reasons[UNTOLD]),
    }


def _disagreement(verdict: Verdict) -> dict[str, Any]:
    case = verdict.case
    return {"id": case.id, "kind": case.kind, "case": case.to_dict(),
            "differences": [{**d._asdict(), "indices": list(d.indices)}
                            for d in verdict.differences]}


def _reasons(found: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Return each reason once, the commonest first, with how many cases and one of them."""
    return [{"reason": reason, "cases": len(ids), "example": ids[0]}
            for reason, ids in sorted(found.items(), key=lambda row: -len(row[1]))]


def exit_code(found: Mapping[str, Any]) -> int:
    """Return 1 when an answer differs, 4 when none could be compared, else 0."""
    totals = found["totals"]
    if totals[DISAGREE]:
        return 1
    return 0 if any(totals[status] for status in COMPARED) else 4
