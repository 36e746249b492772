"""PyTorch's allocator against its simulation, on a real GPU: the memory that loading a model takes.

`tests/gpu/load_events.json.gz` holds what vLLM 0.32.0 allocates and frees while it builds a model
and prepares its weights, in its order: recorded from its own start-up on tensors without values, on
an emulated H100 (A100 for Marlin). `events` are bytes asked for; a negative number -n frees request
number n - 1, and 0 stands for torch.cuda.empty_cache(), as the engine calls it before it prepares
weights.

    python tests/gpu/allocator_check.py --json result.json

prints a table and writes the same as JSON; it ends with 1 where a difference exceeds 2 MiB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from quantplan.planner.allocator import Allocator

EVENTS = Path(__file__).parent / "load_events.json.gz"
TOLERANCE_BYTES = 2 << 20
FIGURES = ("allocated_bytes", "reserved_bytes", "peak_bytes", "reserved_after_bytes")
"""In use, asked of the driver and most in use at the end; asked of the driver after empty_cache."""


def load_events() -> list[dict[str, Any]]:
    """Return the recorded models: id, what was asked, events."""
    with gzip.open(EVENTS, "rt", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = json.load(file)
    return rows


def simulated(events: list[int]) -> dict[str, int]:
    """Return FIGURES as the simulation has them."""
    memory, blocks = Allocator(), []
    for event in events:
        if event > 0:
            blocks.append(memory.take(event))
        elif event < 0:
            memory.give_back(blocks[-event - 1])
        else:
            memory.empty_cache()
    found = {name: getattr(memory, name) for name in FIGURES[:3]}
    memory.empty_cache()
    return {**found, "reserved_after_bytes": memory.reserved_bytes}


def measured(events: list[int]) -> dict[str, int]:
    """Return FIGURES as this GPU's allocator has them, over what it held before."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    tensors: list[Any] = []
    for event in events:
        if event > 0:
            tensors.append(torch.empty(event, dtype=torch.uint8, device="cuda"))
        elif event < 0:
            tensors[-event - 1] = None
        else:
            torch.cuda.empty_cache()
    found = {"allocated_bytes": torch.cuda.memory_allocated() - held[0],
             "reserved_bytes": torch.cuda.memory_reserved() - held[1],
             "peak_bytes": torch.cuda.max_memory_allocated() - held[0]}
    torch.cuda.empty_cache()
    found["reserved_after_bytes"] = torch.cuda.memory_reserved() - held[1]
    del tensors
    torch.cuda.empty_cache()
    return found


def compared() -> dict[str, Any]:
    """Return every model's figures, simulated and measured, and the GPU and torch of the latter."""
    import torch

    rows = [{"id": row["id"], "events": len(row["events"]), "simulated": simulated(row["events"]),
             "measured": measured(row["events"])} for row in load_events()]
    for row in rows:
        row["difference"] = {name: row["simulated"][name] - row["measured"][name]
                             for name in FIGURES}
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
            "tolerance_bytes": TOLERANCE_BYTES, "models": rows}


def largest_difference(row: dict[str, Any]) -> int:
    """Return the largest difference of a model's figures, in bytes."""
    return max(abs(value) for value in row["difference"].values())


def main() -> int:
    """Compare, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, help="where to write the figures")
    path = Path(parser.parse_args().json)
    found = compared()
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{found['gpu']}, torch {found['torch']}; bytes: simulated - measured = difference")
    for row in found["models"]:
        print(row["id"])
        for name in FIGURES:
            print(f"  {name:22} {row['simulated'][name]:>15,} - {row['measured'][name]:>15,} = "
                  f"{row['difference'][name]:,}")
    return int(any(largest_difference(row) > TOLERANCE_BYTES for row in found["models"]))


if __name__ == "__main__":
    sys.exit(main())
