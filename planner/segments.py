"""What one GPU's memory is divided into: the figures that a picture of a budget shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantplan.tables.record import NamedTuple

if TYPE_CHECKING:
    from quantplan.planner.budget import Budget
    from quantplan.planner.sglang_budget import SglangBudget

KINDS = ("weights", "activations", "CUDA graphs", "non-torch", "KV cache", "outside", "free")
"""What a segment can be, in the order in which a bar stacks them; "outside" is what the engine
leaves to others, "free" what it asks for and does not use."""


class Segment(NamedTuple):
    """Bytes of one kind."""

    kind: str
    bytes: int


class MemoryBar(NamedTuple):
    """One GPU: its memory and what is in it, in the order of KINDS; `label` tells ranks apart.

    The segments of what does not fit sum to more than `total_bytes`.
    """

    label: str
    total_bytes: int
    segments: tuple[Segment, ...]

    @property
    def used_bytes(self) -> int:
        """Return the sum of the segments."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def scale_bytes(self) -> int:
        """Return what the bar's whole length stands for."""
        return max(self.total_bytes, self.used_bytes)


def stacked(label: str, total_bytes: int, segments: Sequence[Segment]) -> MemoryBar:
    """Return a bar of the segments that hold anything, one per kind."""
    sums = {kind: sum(s.bytes for s in segments if s.kind == kind) for kind in KINDS}
    return MemoryBar(label, total_bytes, tuple(
        Segment(kind, size) for kind, size in sums.items() if size > 0))


def shares(bar: MemoryBar, cells: int) -> list[int]:
    """Return how many of `cells` each segment takes, by largest remainder: none of them less than
    one where there are enough, their sum `cells` where the bar is full."""
    exact = [segment.bytes * cells / bar.scale_bytes for segment in bar.segments]
    wanted = round(bar.used_bytes * cells / bar.scale_bytes)
    taken = [max(1, int(share)) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: int(exact[i]) - exact[i])
    for place in by_rest[:max(0, wanted - sum(taken))]:
        taken[place] += 1
    while sum(taken) > wanted and max(taken) > 1:
        taken[taken.index(max(taken))] -= 1
    return taken


PARTS = {"CUDA graphs": "CUDA graphs", "non-torch": "non-torch", "CUDA context": "non-torch",
         "loading": "weights"}
"""How the name of an overhead begins -> its kind; all others are activations."""


def bar_of(budget: Budget | SglangBudget) -> MemoryBar:
    """Return the bar of one rank of a budget."""
    total = budget.memory.bytes
    segments = [Segment("weights", budget.weights.bytes),
                *(Segment(_kind(line.name), line.bytes) for line in budget.overheads),
                Segment("KV cache", max(0, budget.kv_bytes))]
    rest = total - sum(segment.bytes for segment in segments)
    return stacked("", total, [*segments, Segment("outside", max(0, rest))])


def _kind(name: str) -> str:
    return next((kind for begins, kind in PARTS.items() if name.startswith(begins)), "activations")
