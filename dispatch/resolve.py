"""One question, one answer: the engine's own steps, chosen by the table's engine name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.trace import Trace
from quantplan.tables.errors import NotKnownError


def resolve(
    checkpoint: Checkpoint, table: Mapping[str, Any], gpu: Gpu, deployment: Deployment
) -> Trace:
    """Return what the engine version of `table` would do with `checkpoint` on `gpu`.

    Raises NotKnownError where the tables have a gap, UsageError for flags that are no choice.
    """
    if table["engine"] == "vllm":
        from quantplan.dispatch.vllm.resolve import resolve as resolve_vllm

        return resolve_vllm(checkpoint, table, gpu, deployment)
    if table["engine"] == "sglang":
        from quantplan.dispatch.sglang.resolve import resolve as resolve_sglang

        return resolve_sglang(checkpoint, table, gpu, deployment)
    raise NotKnownError(f"no resolver for engine {table['engine']}", wanted="vllm or sglang")
