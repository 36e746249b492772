"""One figure of a budget: bytes, how they are counted, the rule's source, how it is known."""

from __future__ import annotations

from typing import Any

from quantplan.tables.record import NamedTuple

EXACT, MODELLED, MEASURED, SPEC = "exact", "modelled", "measured", "spec"
UNKNOWN = "not known"
"""Exact: arithmetic on shapes. Modelled: an estimate. Measured: read from a machine or a log.
Spec: as given or as printed on the product. Not known: 0 bytes stand for it, what is left is an
upper bound."""


class BudgetLine(NamedTuple):
    """A figure in bytes per rank; `formula` has one factor per part, `kind` is one of the above,
    `plus_minus_bytes` how far it may be off, 0 where that is not known or it is exact."""

    name: str
    bytes: int
    formula: str
    source: str
    kind: str
    plus_minus_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the line as plain data."""
        return self._asdict()


def total_bytes(lines: tuple[BudgetLine, ...]) -> int:
    """Return the sum of some lines."""
    return sum(line.bytes for line in lines)
