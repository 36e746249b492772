"""What several engine versions would do with one checkpoint on several GPUs; what is not known of
one of them leaves the others' answers standing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.resolve import resolve
from quantplan.dispatch.time_limit import limited
from quantplan.dispatch.trace import Trace
from quantplan.tables.errors import NotKnownError, QuantplanError, UsageError

Table = Mapping[str, Any]


class Answer(NamedTuple):
    """One engine version's trace on one GPU; where it has none, `gap` says why: something is not
    known, or a flag is none of this engine's."""

    engine: str
    version: str
    gpu: Gpu
    trace: Trace | None
    gap: QuantplanError | None = None


def answers(
    checkpoint: Checkpoint, tables: Iterable[Table], gpus: Iterable[Gpu], deployment: Deployment
) -> Iterator[Answer]:
    """Yield the answer of each table on each GPU, a table after the other.

    Raises CheckpointError for a config that cannot be believed.
    """
    there = tuple(gpus)
    for table in tables:
        for gpu in there:
            yield answer(checkpoint, table, gpu, deployment)


def answer(checkpoint: Checkpoint, table: Table, gpu: Gpu, deployment: Deployment) -> Answer:
    """Return one engine version's answer. Raises CheckpointError."""
    try:
        with limited():
            trace = resolve(checkpoint, table, gpu, deployment)
    except (NotKnownError, UsageError) as gap:
        return Answer(table["engine"], table["version"], gpu, None, gap)
    return Answer(table["engine"], table["version"], gpu, trace)
