"""Aligned columns of text: small enough to cost no start-up time."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


def columns(
    rows: Sequence[Sequence[object]], header: Sequence[str] = (), align: str = "", indent: int = 2
) -> str:
    """Return rows as aligned columns, one line each, without trailing spaces.

    `align` has one letter per column: l (left, the default) or r (right). Cells are shown by str;
    None is an empty cell. Rows may be shorter than the widest one. Returns "" without rows.
    """
    if not rows:
        return ""
    cells = [["" if cell is None else str(cell) for cell in row]
             for row in ([header, *rows] if header else rows)]
    count = max(map(len, cells))
    widths = [max((len(row[i]) for row in cells if i < len(row)), default=0) for i in range(count)]
    align = align.ljust(count, "l")
    return "\n".join(_line(row, widths, align, indent) for row in cells)


def _line(row: Sequence[str], widths: Sequence[int], align: str, indent: int) -> str:
    placed = (cell.rjust(width) if side == "r" else cell.ljust(width)
              for cell, width, side in zip(row, widths, align, strict=False))
    return (" " * indent + GAP.join(placed)).rstrip()
