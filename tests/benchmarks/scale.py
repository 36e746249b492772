"""`quantplan explain` on a checkpoint of 10^12 parameters: 209,191 tensors in 160 shards.

Usage: python tests/benchmarks/scale.py [RUNS]. Prints whole-process seconds of `explain` at tensor
parallel 8, and the peak memory of reading it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sparse_checkpoint import build_trillion

READ = """
import sys
from quantplan.dispatch.checkpoint import read_checkpoint
count = len(read_checkpoint(sys.argv[1]).tensors)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(count, status["VmHWM"].split()[0])
"""


def main(runs: int) -> None:
    """Print the best and all wall times of `explain`, then the peak memory of reading."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(build_trillion(Path(folder) / "trillion"))
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "quantplan", "explain", model, "--gpu", "h200", "--tp", "8"],
                capture_output=True, text=True, check=False)
            times.append(time.perf_counter() - start)
        print(f"explain: exit code {done.returncode}, best {min(times):.2f} s of "
              + ", ".join(f"{t:.2f}" for t in times))
        answer = subprocess.run([sys.executable, "-c", READ, model], capture_output=True,
                                text=True, check=True).stdout.split()
        print(f"read: {answer[0]} tensors, peak memory {int(answer[1]) / 1024:.0f} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
