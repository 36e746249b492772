"""A parallel group without processes: rank 0 of the asked size, which never communicates."""

from __future__ import annotations

import types
from typing import Any

from quantplan.oracle.worker.device import do_nothing


class Group:
    """What the engine asks of a GroupCoordinator while it builds a model."""

    def __init__(self, size: int) -> None:
        self.world_size = size
        self.rank = self.rank_in_group = self.local_rank = self.first_rank = 0
        self.last_rank = size - 1
        self.ranks = list(range(size))
        self.is_first_rank, self.is_last_rank = True, size == 1
        self.unique_name = "emulated"
        self.device_communicator = self.mq_broadcaster = None
        self.use_device_communicator = False
        self.device_group = self.cpu_group = types.SimpleNamespace(
            size=lambda: size, rank=lambda: 0, group_name="emulated")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return do_nothing
