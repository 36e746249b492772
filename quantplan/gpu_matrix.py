"""`quantplan.matrix`: one model on several GPUs and engine versions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.api import open_gpu
from quantplan.dispatch.facts import Gpu
from quantplan.engines import asked, asked_model
from quantplan.options import ENGINES, engine_named
from quantplan.planner.matrix import Matrix, make_matrix
from quantplan.stand_in import open_table
from quantplan.tables.errors import UsageError

ALL = "all"
"""The name that means every GPU of the catalogue."""


def matrix(
    model: str | os.PathLike[str] | Mapping[str, Any],
    *,
    engines: Sequence[str] = ENGINES,
    gpus: Sequence[str] = (),
    capabilities: Sequence[str | int | float] = (),
    **options: Any,
) -> Matrix:
    """Return what each of `engines` would do with `model` on each GPU.

    `gpus` are names of the catalogue ("all": every one), `capabilities` compute capabilities;
    without either, every capability that a GPU of the catalogue has from 7.0 up. `options` are
    those of `explain` but for engine and GPU. Raises UsageError and CheckpointError; what is not
    known is a cell's `gap`.
    """
    for name in ("gpu", "capability", "engine", "engine_version"):
        if name in options:
            raise UsageError(name, wanted="gpus, capabilities and engines, which are lists")
    given, deployment = asked(model, options)
    tables = [open_table(*engine_named(text, "--engine"), given["assume_nearest"])
              for text in engines]
    return make_matrix(asked_model(given), tables, asked_gpus(gpus, capabilities), deployment)


def asked_gpus(names: Sequence[str], capabilities: Sequence[str | int | float]) -> list[Gpu]:
    """Return the GPUs that are meant, in the order of the question."""
    from quantplan.dispatch.gpu import all_gpus, capability_gpu, gpu_of

    if ALL in names:
        named = [gpu_of(row) for row in all_gpus()]
    else:
        named = [open_gpu(name, None) for name in names]
    asked = capabilities or ([] if names else _classes(all_gpus()))
    return [*named, *(capability_gpu(str(text)) for text in asked)]


def _classes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the capabilities of the catalogue, lowest first."""
    return sorted({str(row["capability"]) for row in rows}, key=lambda text: tuple(
        map(int, text.split("."))))
