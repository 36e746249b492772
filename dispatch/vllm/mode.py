"""What the chosen kernel computes: its mode, and how it quantizes activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import applies, fill

Row = Mapping[str, Any]
Facts = Mapping[str, Any]


def mode_of(kernel: Row, table: Row, facts: Facts, act: str | None
            ) -> tuple[str | None, str | None]:
    """Return a kernel's mode for one layer, and how activations are quantized; mode None where the
    kernel cannot prepare the weights. `act` is what the layer asks for."""
    if "humming" in kernel:
        from quantplan.dispatch.vllm.humming_mode import humming_mode  # most kernels need none

        return humming_mode(kernel, table["humming"], facts, act)
    special = (m for m in kernel.get("mode_when", ()) if applies(m["when"], facts))
    running = next(special, kernel)
    return fill(running["mode"], facts), running.get("act", act)
