"""vLLM's parallel groups: rank 0 of the asked sizes."""

from __future__ import annotations

from typing import Any

from quantplan.oracle.worker.group import Group
from quantplan.oracle.worker.modules import imported

ALONE = ("_DCP", "_PP", "_EPLB", "_PCP", "_INNER_DP_WORLD")
"""Groups of one rank."""


def form_groups(parallel: Any) -> None:
    """Make the engine's groups those of its ParallelConfig: experts span data and tensor ranks."""
    state = imported("vllm.distributed.parallel_state")
    tensor, data = parallel.tensor_parallel_size, parallel.data_parallel_size
    sizes = {"_TP": tensor, "_WORLD": tensor, "_DP": data, "_EP": tensor * data,
             **dict.fromkeys(ALONE, 1)}
    for name, size in sizes.items():
        if hasattr(state, name):
            setattr(state, name, Group(size))
    if hasattr(state, "_NODE_COUNT"):
        state._NODE_COUNT = 1
