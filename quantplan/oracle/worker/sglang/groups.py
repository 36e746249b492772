"""SGLang's parallel groups: rank 0 of the sizes that the server's arguments give them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from quantplan.oracle.worker.group import Group
from quantplan.oracle.worker.modules import imported

SIZES = {"tp_group": "tp_size", "pp_group": "pp_size", "moe_ep_group": "moe_ep_size",
         "moe_dp_group": "moe_dp_size", "moe_tp_group": "moe_tp_size",
         "attn_tp_group": "attn_tp_size", "attn_cp_group": "attn_cp_size",
         "shared_experts_tp_group": "shared_experts_tp_size", "dcp_group": "dcp_size"}
"""Group -> the size that the engine works out for it."""
WHOLE = ("world_group", "shared_experts_tp_group")
"""Groups that are the tensor ranks, where nothing else is said."""


class QuietGroup(Group):
    """A group that has no communicator of any kind."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def all_reduce(self, tensor: Any, *given: Any, **named: Any) -> Any:
        """Return the tensor as it is."""
        return tensor


def form_groups() -> None:
    """Make the engine's groups those of its published arguments."""
    parallel = imported("sglang.srt.runtime_context").get_parallel()
    sizes = {group: parallel.tp_size if group in WHOLE else 1 for group in (*SIZES, *WHOLE)}
    for group, size in SIZES.items():
        with suppress(Exception):  # a size of which this version knows nothing
            sizes[group] = getattr(parallel, size) or 1
    parallel.override_permanently(**{group: QuietGroup(size) for group, size in sizes.items()})
