"""What a shell completes: names of the tables. Imports are made only when a shell asks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


def gpu_names(context: Any, parameter: Any, begun: str) -> list[str]:
    """Return the ids and aliases of GPUs that begin with what was typed."""
    from quantplan.dispatch.gpu import all_gpus

    return _fitting((name for row in all_gpus() for name in (row["id"], *row["aliases"])), begun)


def model_names(context: Any, parameter: Any, begun: str) -> list[str]:
    """Return the bundled models, and the paths here, that begin with what was typed."""
    from quantplan.dispatch.bundled import bundled_models

    folder, _ = os.path.split(begun)
    try:
        here = [os.path.join(folder, name) for name in os.listdir(folder or ".")]
    except OSError:
        here = []
    return _fitting([*(row["id"] for row in bundled_models()), *here], begun)


def format_names(context: Any, parameter: Any, begun: str) -> list[str]:
    """Return the formats of --as that begin with what was typed."""
    from quantplan.dispatch.formats import format_ids

    return _fitting(format_ids(), begun)


def kernel_names(context: Any, parameter: Any, begun: str) -> list[str]:
    """Return the kernels and attention backends of the default vLLM that begin with what was
    typed."""
    from quantplan.dispatch.candidates import kernel_ids
    from quantplan.tables.engine_loading import load_engine

    return _fitting(kernel_ids(load_engine("vllm")), begun)


def _fitting(names: Iterable[str], begun: str) -> list[str]:
    return sorted({name for name in names if name.lower().startswith(begun.lower())})
