"""Engine answers for tests: ours in the worker's form, so that they agree until changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAKE = str(Path(__file__).parent / "fake_worker.py")
Answer = dict[str, Any]


def as_engine(ours: Answer) -> Answer:
    """Return our answer (explain.v1.json) as the worker would give it."""
    error = ours["error"]
    return {
        "outcome": ours["outcome"], "method": ours["method"]["resolved"],
        "config_class": ours["method"]["config_class"],
        "min_capability": ours["method"]["min_capability"],
        "dtype": ours["deployment"]["dtype"], "dtype_refused": None,
        "error": error and {name: error[name] for name in ("type", "message", "layer", "source")},
        "layers": [_row(row, index) for row in ours["layers"] for index in row["indices"] or [0]],
    }


def _row(row: Answer, index: int) -> Answer:
    names = ("module", "method", "scheme", "family", "kernel", "mode", "n", "k")
    found = {name: row[name] for name in names}
    found["path"] = row["path"].replace("*", str(index))
    found["rejected"] = [[r["kernel"], r["engine_reason"]] for r in row["rejected"]]
    return found | {name: row[name] for name in ("attn_backend", "kv_cache_dtype") if name in row}
