"""What is known and what is here, as text: the GPU catalogue, bundled models, the local probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantplan.dispatch.gpu_probe import Probe

GIB = 2**30


def gpu_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the GPUs as a table: id, capability, memory as known, bandwidth, driver name."""
    from quantplan.dispatch.gpu import gpu_of

    found = []
    for row in rows:
        gpu = gpu_of(row)
        memory = f"{gpu.memory_bytes / GIB:.2f} GiB" if gpu.memory_bytes else "-"
        bandwidth = row.get("bandwidth_gb_per_s", {}).get("value")
        found.append((row["id"], gpu.capability_text, memory, gpu.memory_kind or "-",
                      f"{bandwidth:,} GB/s" if bandwidth else "-", row["name"]))
    return _table(found, ("id", "capability", "memory", "from", "bandwidth", "name"), "llrlrl")


def model_data(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the bundled models as JSON-ready data: their rows, and whether `budget` answers."""
    from quantplan.dispatch.bundled import bundled_checkpoint
    from quantplan.planner.weights import weighable

    found = [(row, bundled_checkpoint(row["id"])) for row in rows]
    return [{**row, "budget": model is not None and weighable(model)} for row, model in found]


def model_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the bundled models, as `model_data` has them, as a table."""
    found = [(row["id"], f"{row['parameters_count'] / 1e9:.2f} B",
              "yes" if row["budget"] else "no", row["hub"]) for row in rows]
    return _table(found, ("id", "parameters", "budget", "facts of"), "lrll")


def probe_data(found: Probe) -> dict[str, Any]:
    """Return the probe as JSON-ready data."""
    return {
        "schema": "quantplan/probe/1", "driver": found.driver, "cuda_driver": found.cuda_driver,
        "gpus": [{"name": g.name, "capability": g.capability_text, "sm_count": g.sm_count,
                  "memory_bytes": g.memory_bytes, "memory_free_bytes": g.memory_free_bytes,
                  "memory_kind": g.memory_kind} for g in found.gpus],
        "problems": [dict(problem._asdict()) for problem in found.problems],
    }


def probe_text(found: Probe) -> str:
    """Return the probe as text: driver, a table of GPUs, then what stood in the way."""
    lines = [f"driver {found.driver or 'unknown'}, CUDA {found.cuda_driver or 'unknown'}"]
    if found.gpus:
        lines.append(_table(
            [(str(i), g.name, g.capability_text, _gib(g.memory_bytes), _gib(g.memory_free_bytes))
             for i, g in enumerate(found.gpus)],
            ("index", "name", "capability", "total", "free"), "llrrr"))
    for problem in found.problems:
        lines.append(f"{problem.id}: {problem.message}")
        if problem.hint:
            lines.append(f"  next: {problem.hint}")
    return "\n".join(lines)


def _gib(size_bytes: int | None) -> str:
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes is not None else "-"


def _table(found: Iterable[Iterable[str]], header: tuple[str, ...], sides: str) -> str:
    from tabulate import tabulate

    names = {"l": "left", "r": "right"}
    return tabulate(found, header, "plain", disable_numparse=True,
                    colalign=[names[side] for side in sides])
