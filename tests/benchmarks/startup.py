"""Whole-process times of `explain` and `budget` on a local 8B checkpoint, against `import click`.

Usage: python tests/benchmarks/startup.py [RUNS]. Run it with an installed quantplan (not editable:
the editable import hook alone costs 10 ms). Prints the best and the median of RUNS processes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sparse_checkpoint import build


def seconds(command: list[str], runs: int) -> list[float]:
    """Return the wall time of each of `runs` processes, in seconds."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - start)
    return found


def main(runs: int) -> None:
    """Print a table of best and median milliseconds, and the ratio to `import click`."""
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        model = str(build(Path(folder) / "llama", "fp8"))
        commands = {
            "python -c pass": [python, "-c", "pass"],
            "python -c 'import click'": [python, "-c", "import click"],
            "quantplan explain FOLDER": [python, "-m", "quantplan", "explain", model,
                                         "--gpu", "a100-80g"],
            "quantplan budget FOLDER": [python, "-m", "quantplan", "budget", model,
                                        "--gpu-mem", "24GiB", "--max-model-len", "8192"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(runs):
            for name, command in commands.items():
                times[name] += seconds(command, 1)
    click = min(times["python -c 'import click'"])
    print(f"{'command':28} {'best ms':>8} {'median ms':>10} {'x click':>8}")
    for name, values in times.items():
        best = min(values)
        print(f"{name:28} {best * 1e3:8.1f} {statistics.median(values) * 1e3:10.1f} "
              f"{best / click:8.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
