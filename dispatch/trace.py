"""The answer as data: what the engine would do with each layer, and every reason on the way.

Texts for people are made in reports/ from these records; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import FAIL, PASS, UNKNOWN, Check
from quantplan.tables.record import NamedTuple

SEVERITIES = ("error", "warning", "info")
PARTIAL_TABLE = "partial-table"
"""The finding of an answer whose table covers a part of the engine version only."""
STAGES = (
    "flags", "method name", "config fields", "capability gate", "activation dtype",
    "layer assignment", "shapes under TP", "scales in the checkpoint", "kernel selection",
    "mode and numerics", "weight loading", "first forward",
)
"""Where a finding or an error belongs, in the order in which an engine can fail."""


class Finding(NamedTuple):
    """One sentence the user should read: severity is error, warning or info."""

    stage: str
    severity: str
    id: str
    message: str
    hint: str | None = None
    source: str | None = None


class Step(NamedTuple):
    """One change of a name or a candidate list, with its reason: Overridden, Reordered, Pinned,
    Filtered, Disabled, Typed (a name counts as one that was asked for), or NoCode (chosen, but not
    compiled for the device)."""

    kind: str
    what: str
    because: str
    source: str


class Candidate(NamedTuple):
    """One kernel of a family's list, with every check evaluated.

    `reason` is what the engine itself would log for a rejected candidate; `considered` is false
    behind the chosen one, where the engine never looks.
    """

    kernel: str
    verdict: str
    checks: tuple[Check, ...]
    source: str
    reason: str | None = None
    considered: bool = True

    @property
    def name(self) -> str:
        """Return the kernel without the id of its row, which SGLang's candidates have behind it."""
        return self.kernel.partition(" (")[0]

    @property
    def decisive(self) -> Check | None:
        """Return the first check that did not pass: the one the engine reports."""
        return next((check for check in self.checks if check.verdict != PASS), None)


class Alternative(NamedTuple):
    """What would be chosen if facts that are not known from here had the given values."""

    kernel: str
    if_facts: tuple[str, ...]


class Selection(NamedTuple):
    """A walk over one family's candidates; `kernel` is None when none can implement the layer."""

    family: str
    kernel: str | None
    candidates: tuple[Candidate, ...]
    steps: tuple[Step, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    error: str | None = None

    @property
    def chosen(self) -> Candidate | None:
        """Return the chosen candidate with its checks, or None: of several rows with its name the
        first whose checks pass."""
        named = [c for c in self.candidates if c.name == self.kernel]
        return next((c for c in named if c.verdict == PASS), named[0] if named else None)

    @property
    def pinned(self) -> bool:
        """Return whether the engine forced the kernel and walked no list."""
        return any(step.kind == "Pinned" for step in self.steps)

    @property
    def rejected(self) -> tuple[Candidate, ...]:
        """Return the candidates that the engine looked at and turned down, in its order."""
        return tuple(c for c in self.candidates if c.considered and c.verdict != PASS)


class TunedFile(NamedTuple):
    """A file of tuned tile sizes that a kernel looks for by name, and whether the wheel has it.

    `configs` names the table's row, `sizes` the two sizes of the name, `rest` what stands after
    device_name=; `runs` says when the kernel that reads it runs, where that is not always.
    """

    configs: str
    name: str
    sizes: tuple[int, int]
    rest: str
    there: bool
    runs: str | None = None


class Layer(NamedTuple):
    """One engine layer (after fusing), sizes per rank, or attention or experts (n and k None).

    `moe_backend` is the backend of routed experts (UNKNOWN where facts that are not known decide),
    None for other layers; `weights` counts their weights on one rank. `note` is what is known to
    come of it later. `asked` is how the checkpoint wants activations quantized. `tuned` is the file
    of tile sizes that the kernel looks for, where the GPU's name is known. `fused` says whether
    an SGLang operator applies scales in the product itself, `kernel_backend` what it is called
    with; None: that is no question.
    """

    path: str
    module: str
    n: int | None = None
    k: int | None = None
    layer_index: int | None = None
    method: str | None = None
    scheme: str | None = None
    mode: str | None = None
    act: str | None = None
    selection: Selection | None = None
    attn_backend: str | None = None
    kv_cache_dtype: str | None = None
    prefill_backend: str | None = None
    why: str | None = None
    moe_backend: str | None = None
    weights: int = 0
    note: Finding | None = None
    asked: str | None = None
    tuned: TunedFile | None = None
    fused: bool | None = None
    kernel_backend: str | None = None

    @property
    def weighted(self) -> bool:
        """Return whether it has weights, which attention, caches and states have not."""
        return self.n is not None or self.weights > 0

    @property
    def kernel(self) -> str | None:
        """Return the chosen kernel's class name, if this layer has one."""
        return self.selection.kernel if self.selection else None


class EngineError(NamedTuple):
    """What the engine would raise: its exception type, its words, the stage and the layer."""

    stage: str
    type: str
    message: str
    layer: str | None = None
    source: str | None = None
    hint: str | None = None
    selection: Selection | None = None


class Refusal(Exception):  # noqa: N818 - an answer on its way up, not a fault of ours
    """Carries an EngineError up from the step at which the engine would raise it."""

    def __init__(self, error: EngineError) -> None:
        self.error = error
        super().__init__(error.message)


def refuse(  # noqa: PLR0917 - mirrors the fields of EngineError
    stage: str, kind: str, message: str, layer: str | None = None, source: str | None = None,
    hint: str | None = None, selection: Selection | None = None,
) -> Refusal:
    """Return the exception that ends a resolution with what the engine would raise."""
    return Refusal(EngineError(stage, kind, message, layer, source, hint, selection))


class Method(NamedTuple):
    """How the quantization method's name was found, and the config class that serves it."""

    checkpoint: str | None = None
    requested: str | None = None
    resolved: str | None = None
    config_class: str | None = None
    min_capability: int | None = None
    steps: tuple[Step, ...] = ()


class Trace(NamedTuple):
    """Everything one engine version would do with one checkpoint on one GPU.

    `asked` is the version of the question where another one's table stands in for it.
    """

    engine: str
    version: str
    dtype: str
    method: Method
    outcome: str
    layers: tuple[Layer, ...] = ()
    error: EngineError | None = None
    findings: tuple[Finding, ...] = ()
    kv_cache: Mapping[str, Any] = {}
    asked: str | None = None


__all__ = [
    "FAIL", "PASS", "SEVERITIES", "STAGES", "UNKNOWN", "Alternative", "Candidate", "Check",
    "EngineError", "Finding", "Layer", "Method", "Refusal", "Selection", "Step", "Trace",
    "TunedFile", "refuse",
]
