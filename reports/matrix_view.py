"""A matrix of answers as plain data: the JSON of `quantplan matrix`."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.summary import Part
from quantplan.planner.matrix import Cell, Matrix
from quantplan.reports.explain_view import deployment_view, error_view, gpu_view, model_view
from quantplan.reports.layer_names import short_path

SCHEMA = "quantplan/matrix/1"


def matrix_view(matrix: Matrix) -> dict[str, Any]:
    """Return the matrix as JSON-ready data, by reports/schema/matrix.v1.json."""
    return {"schema": SCHEMA, "model": model_view(matrix.checkpoint),
            "deployment": deployment_view(matrix.deployment),
            "cells": [_cell(cell) for cell in matrix.cells]}


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "engine": {"name": cell.engine, "version": cell.version}, "gpu": gpu_view(cell.gpu),
        "starts": cell.starts, "dtype": cell.dtype, "method": cell.method,
        "linear": [_part(part) for part in cell.linear],
        "experts": [_part(part) for part in cell.experts],
        "kv_cache_dtype": cell.kv_cache, "attention_backends": list(cell.attention),
        "error": error_view(cell.refusal),
        "fault": dict(cell.fault._asdict()) if cell.fault else None,
        "not_known": cell.gap.to_dict()["error"] if cell.gap else None,
    }


def _part(part: Part) -> dict[str, Any]:
    return {"mode": part.mode, "implementation": part.implementation,
            "kernels": list(part.kernels), "weights_per_rank": part.weights,
            "layers": list(dict.fromkeys(map(short_path, part.layers)))}
