"""One figure of a budget: bytes, how they are counted, the rule's source, how it is known."""

from __future__ import annotations

from typing import Any, NamedTuple

EXACT, MODELLED, MEASURED, SPEC = "exact", "modelled", "measured", "spec"
"""Exact: arithmetic on shapes. Modelled: an estimate. Measured: read from a machine or a log.
Spec: as given or as printed on the product."""


class BudgetLine(NamedTuple):
    """A figure in bytes per rank; `formula` has one factor per part, `kind` is one of the above."""

    name: str
    bytes: int
    formula: str
    source: str
    kind: str

    def to_dict(self) -> dict[str, Any]:
        """Return the line as plain data."""
        return self._asdict()


def total_bytes(lines: tuple[BudgetLine, ...]) -> int:
    """Return the sum of some lines."""
    return sum(line.bytes for line in lines)
