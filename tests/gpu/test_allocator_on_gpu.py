"""The simulated allocator against this machine's GPU; skipped where there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from allocator_check import (
    FIGURES,
    TOLERANCE_BYTES,
    load_events,
    measured,
    simulated,
)


@pytest.mark.gpu
@pytest.mark.parametrize("row", load_events(), ids=lambda row: str(row["id"]))
def test_loading_a_model_takes_what_the_simulation_says(row: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="no torch: nothing was measured")
    if not torch.cuda.is_available():
        pytest.skip("no GPU: nothing was measured")
    if torch.cuda.mem_get_info()[0] < simulated(row["events"])["reserved_bytes"] + (1 << 30):
        pytest.skip("the GPU is too small for this model")
    ours, real = simulated(row["events"]), measured(row["events"])
    apart = [name for name in FIGURES if abs(ours[name] - real[name]) > TOLERANCE_BYTES]
    assert not apart, (ours, real)
