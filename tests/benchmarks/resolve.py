"""In-process time of `quantplan.explain` per case with warm tables, over the golden rows.

Usage: python tests/benchmarks/resolve.py
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from pathlib import Path

import quantplan

ROWS = Path(__file__).resolve().parents[1] / "golden" / "vllm-0.32.0.jsonl.gz"
REAL_LAYERS = {"llama8b": 32, "llama70b": 80, "qwen72b": 80}


def main() -> None:
    """Print median, 99th percentile and maximum milliseconds, for cut and for whole models."""
    with gzip.open(ROWS, "rt", encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    for whole in (False, True):
        times = sorted(_milliseconds(row, whole) for row in [cases[0], *cases])[:-1]
        name = "all layers" if whole else "golden (2 layers)"
        print(f"{name:18} {len(times)} cases: median {statistics.median(times):.2f} ms, "
              f"99 % under {times[int(len(times) * 0.99)]:.2f} ms, most {times[-1]:.2f} ms")


def _milliseconds(row: dict, whole: bool) -> float:
    case = row["case"]
    config = dict(case["config"])
    if whole:
        config["num_hidden_layers"] = REAL_LAYERS[row["id"].split("/")[0]]
    start = time.perf_counter()
    quantplan.explain(
        config, capability=case["capability"], tp=case.get("tp_size", 1), dtype=case.get("dtype"),
        env=case.get("env"), libs=case.get("libs"), quantization=case.get("quantization"),
        kv_cache_dtype=case.get("kv_cache_dtype"), linear_backend=case.get("linear_backend"))
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
