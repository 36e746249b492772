"""The weight bill: values and bits summed into lines, one per kind of tensor."""

from __future__ import annotations

from quantplan.dispatch.formats import is_decoder_linear, is_head
from quantplan.dispatch.structure import Module
from quantplan.planner.cuts import Cut
from quantplan.planner.lines import EXACT, BudgetLine
from quantplan.planner.parts import Part

LINEAR_LINES = {
    "weight": "linear weights",
    "stored": "linear layers as stored",
    "scale": "weight scales",
    "zero_point": "zero points",
    "activation_scale": "activation scales",
    "metadata": "weight shapes",
    "bias": "biases",
}
EXPERT_LINES = {holds: f"expert {line.removeprefix('linear ').removeprefix('weight ')}"
                for holds, line in LINEAR_LINES.items()}
LINES = (*LINEAR_LINES.values(), *EXPERT_LINES.values(), "absorbed copies", "embeddings",
         "lm_head", "norms", "other weights")


class Bill:
    """A bill being written; `lines` returns it in the order of LINES."""

    def __init__(self, source: str) -> None:
        """Start an empty bill; `source` is where the model's layers are described."""
        self._source = source
        self._values: dict[str, dict[int, int]] = {}
        self._sources: dict[str, str] = {}
        self._notes: dict[str, str] = {}

    def add(self, module: Module, cut: Cut, part: Part, times: int) -> None:
        """Add one rank's share of `part`, found in `times` layers."""
        line = line_name(module, part.holds)
        by_bits = self._values.setdefault(line, {})
        values = part.rank_values(cut, module.path) * times
        by_bits[part.bits] = by_bits.get(part.bits, 0) + values
        if part.source:
            self._sources[line] = part.source
        note = part.note or _padding(module, cut, part)
        if note:
            self._notes[line] = note

    def lines(self) -> tuple[BudgetLine, ...]:
        """Return the lines that hold anything."""
        return tuple(self._line(name) for name in LINES if any(self._values.get(name, {}).values()))

    def _line(self, name: str) -> BudgetLine:
        by_bits = {bits: n for bits, n in sorted(self._values[name].items()) if n}
        formula = " + ".join(f"{values:,} x {bits} bits" for bits, values in by_bits.items())
        if name in self._notes:
            formula += f"; {self._notes[name]}"
        size = sum(values * bits for bits, values in by_bits.items())
        return BudgetLine(name, size // 8, formula, self._sources.get(name, self._source), EXACT)


def line_name(module: Module, holds: str) -> str:
    """Return the line that a tensor of `module` belongs to."""
    if module.kind == "experts":
        return EXPERT_LINES[holds]
    if module.kind == "copy":
        return "absorbed copies"
    if is_decoder_linear(module):
        return LINEAR_LINES[holds]
    if module.split == "vocab":
        return "lm_head" if is_head(module) else "embeddings"
    return "norms" if module.kind == "norm" else "other weights"


def _padding(module: Module, cut: Cut, part: Part) -> str | None:
    """Return what to say where the engine allocates more rows than the vocabulary has."""
    if module.split != "vocab" or cut.n % cut.n_rank == 0:
        return None
    return f"{cut.n:,} rows padded to a multiple of 64"
