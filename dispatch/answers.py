"""What an engine version would do with a checkpoint on a GPU, or the gap that stands in its place:
what is not known of one leaves the others' answers standing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.resolve import resolve
from quantplan.dispatch.time_limit import limited
from quantplan.dispatch.trace import Trace
from quantplan.tables.errors import NotKnownError, QuantplanError, UsageError
from quantplan.tables.record import NamedTuple

Table = Mapping[str, Any]


class Answer(NamedTuple):
    """One engine version's trace on one GPU; where it has none, `gap` says why: something is not
    known, or a flag is none of this engine's."""

    engine: str
    version: str
    gpu: Gpu
    trace: Trace | None
    gap: QuantplanError | None = None


def answer(checkpoint: Checkpoint, table: Table, gpu: Gpu, deployment: Deployment) -> Answer:
    """Return one engine version's answer. Raises CheckpointError."""
    try:
        with limited():
            trace = resolve(checkpoint, table, gpu, deployment)
    except (NotKnownError, UsageError) as gap:
        return Answer(table["engine"], table["version"], gpu, None, gap)
    return Answer(table["engine"], table["version"], gpu, trace)
