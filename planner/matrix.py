"""A matrix of answers: one model, GPUs across, engine versions down, each cell in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quantplan.dispatch.answers import Answer, Table, answers
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.summary import (
    Part,
    attention_backends,
    experts_parts,
    kv_dtypes,
    linear_parts,
    starts,
)
from quantplan.dispatch.trace import EngineError, Finding
from quantplan.tables.errors import QuantplanError


class Cell(NamedTuple):
    """One engine version on one GPU. `starts` is yes, no, conditional or unknown; `refusal` is what
    the engine raises, `fault` a finding of what fails later, `gap` what is not known; the rest is
    empty where there are no layers."""

    engine: str
    version: str
    gpu: Gpu
    starts: str
    dtype: str | None = None
    method: str | None = None
    linear: tuple[Part, ...] = ()
    experts: tuple[Part, ...] = ()
    kv_cache: str | None = None
    attention: tuple[str, ...] = ()
    refusal: EngineError | None = None
    fault: Finding | None = None
    gap: QuantplanError | None = None

    @property
    def reason(self) -> str | None:
        """Return why it does not start, or why that is not known; None where it starts."""
        if self.refusal is not None:
            words = " ".join(self.refusal.message.split())
            return f"{self.refusal.type}: {words}" if words else (
                f"{self.refusal.type} without text at {self.refusal.layer}")
        return self.fault.message if self.fault else str(self.gap) if self.gap else None


class Matrix(NamedTuple):
    """The cells of a model: those of an engine version follow each other, GPU by GPU."""

    checkpoint: Checkpoint
    deployment: Deployment
    gpus: tuple[Gpu, ...]
    cells: tuple[Cell, ...]


def make_matrix(
    checkpoint: Checkpoint, tables: Iterable[Table], gpus: Sequence[Gpu], deployment: Deployment
) -> Matrix:
    """Return every table's answer on every GPU. Raises CheckpointError for a config that cannot be
    believed; what is not known is a cell's `gap`."""
    cells = tuple(_cell(answer) for answer in answers(checkpoint, tables, gpus, deployment))
    return Matrix(checkpoint, deployment, tuple(gpus), cells)


def _cell(answer: Answer) -> Cell:
    head = (answer.engine, answer.version, answer.gpu)
    if answer.trace is None:
        return Cell(*head, "unknown", gap=answer.gap)
    trace = answer.trace
    found = Cell(*head, starts(trace), trace.dtype, trace.method.resolved)
    if trace.error is not None:
        return found._replace(refusal=trace.error)
    return found._replace(
        linear=linear_parts(trace), experts=experts_parts(trace),
        kv_cache=", ".join(kv_dtypes(trace)), attention=attention_backends(trace),
        fault=next((f for f in trace.findings if f.severity == "error"), None))
