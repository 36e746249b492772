"""The memory of each GPU as a stacked bar of text: fills instead of colours, so that it reads the
same in a log, an issue and a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from quantplan.planner.segments import MemoryBar, Segment, shares
from quantplan.reports.sizes_text import gib

FILLS = {"weights": "#", "activations": "a", "CUDA graphs": "g", "non-torch": "n",
         "KV cache": "=", "outside": "x", "free": "."}
"""Kind of segment -> its character: letters for what is small, so that the legend is not needed."""
NARROWEST, WIDEST = 20, 72
"""Characters of a bar."""
PICTURE = 100
"""Characters of the picture's widest line."""


def memory_bars(bars: Sequence[MemoryBar], width: int) -> str:
    """Return the bars, one line each, and the legend with every figure, in lines of at most
    `width` characters where `width` allows a bar at all."""
    label = max((len(bar.label) for bar in bars), default=0)
    cells = min(WIDEST, max(NARROWEST, width - label - 6))
    lines = [_line(bar, label, cells) for bar in bars]
    for bar in bars:
        lines += _legend(bar, width, bar.label if len(bars) > 1 else "")
    return "\n".join(lines)


def _line(bar: MemoryBar, label: int, cells: int) -> str:
    drawn = "".join(FILLS[segment.kind] * count
                    for segment, count in zip(bar.segments, shares(bar, cells), strict=True))
    drawn = drawn.ljust(cells)
    if bar.used_bytes > bar.total_bytes:
        end = bar.total_bytes * cells // bar.scale_bytes
        drawn = f"{drawn[:end]}|{drawn[end:]}"
    return f"  {bar.label.ljust(label)}{' ' if label else ''}[{drawn}]"


def _legend(bar: MemoryBar, width: int, label: str) -> list[str]:
    parts = [_entry(segment, bar) for segment in bar.segments]
    if bar.used_bytes > bar.total_bytes:
        parts.append(f"| {gib(bar.total_bytes)} GiB, the GPU's memory")
    lines = [f"  {label + ': ' if label else ''}{parts[0]}"] if parts else []
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f"   {part}"
        else:
            lines.append(f"  {part}")
    return lines


def _entry(segment: Segment, bar: MemoryBar) -> str:
    percent = round(100 * segment.bytes / bar.total_bytes)
    return f"{FILLS[segment.kind]} {segment.kind} {gib(segment.bytes)} GiB ({percent} %)"
