"""A matrix of answers: one model, GPUs across, engine versions down, each cell in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from quantplan.dispatch.answers import Answer, Table, answer
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
from quantplan.tables.record import NamedTuple


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
    cells = [cell for table in tables for cell in _row(checkpoint, table, gpus, deployment)]
    return Matrix(checkpoint, deployment, tuple(gpus), tuple(cells))


READS = {"vllm": ("capability", "origin"), "sglang": ("capability", "origin", "memory_bytes")}
"""Engine -> facts of a GPU that decide a cell; its name does where a reason has it, or an
operator asks for it."""


def _row(
    checkpoint: Checkpoint, table: Table, gpus: Sequence[Gpu], deployment: Deployment
) -> Iterator[Cell]:
    """Yield one engine version's cells; GPUs that it does not tell apart share an answer."""
    known: dict[tuple[object, ...], Cell] = {}
    products = {*_products(table)}
    for gpu in gpus:
        key = (gpu.name in products and gpu.name,
               *(getattr(gpu, name) for name in READS[table["engine"]]))
        cell = known.get(key)
        if cell is None or cell.gpu.name in (cell.reason or ""):
            cell = known[key] = _cell(answer(checkpoint, table, gpu, deployment))
        yield cell._replace(gpu=gpu)


def _products(table: Table) -> Iterator[str]:
    """Yield the GPUs by whose name an operator is chosen."""
    for part in table.get("operators", {}).values():
        for row in part["operators"]:
            yield from (need["equals"] for need in row.get("requires", ())
                        if need["fact"] == "gpu.name")


def _cell(found: Answer) -> Cell:
    head = (found.engine, found.version, found.gpu)
    if found.trace is None:
        return Cell(*head, "unknown", gap=found.gap)
    trace = found.trace
    cell = Cell(*head, starts(trace), trace.dtype, trace.method.resolved)
    if trace.error is not None:
        return cell._replace(refusal=trace.error)
    return cell._replace(
        linear=linear_parts(trace), experts=experts_parts(trace),
        kv_cache=", ".join(kv_dtypes(trace)), attention=attention_backends(trace),
        fault=next((f for f in trace.findings if f.severity == "error"), None))
