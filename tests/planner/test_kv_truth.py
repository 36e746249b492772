"""Tokens and concurrency that public logs print, from the KV memory that the same logs print.

Rows of pipelines are left out: what they print of tokens follows from a rank whose memory the log
does not name. The GiB have two decimals, the concurrency too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from memory_truth import model_config, truth_row, truth_rows
from quantplan.dispatch.checkpoint import read_checkpoint
from quantplan.dispatch.facts import Deployment, MemoryFlags
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.gpu import find_gpu
from quantplan.dispatch.resolve import resolve
from quantplan.planner.kv_cache import KvCache, kv_cache
from quantplan.tables.engine_loading import load_engine

FLAGS = ("max_model_len", "max_num_batched_tokens", "enable_prefix_caching")
PRINTED = [row for row in truth_rows() if row["engine"] == "vllm" and row["version"]
           and {"kv_gib", "kv_tokens"} <= set(row["printed"]) and row["version"] != "0.11.0"
           and row["asked"].get("pp", 1) == 1 and model_config(row["model"])]
ROUNDING_BYTES = 0.005 * 2**30


def cache_of(row: dict[str, Any], gpu: str = "h100-80g", **flags: Any) -> KvCache:
    config, asked = model_config(row["model"]), row["asked"]
    assert config is not None
    checkpoint = read_checkpoint(config)
    deployment = Deployment(tp=asked.get("tp", 1), dtype=asked.get("dtype") or "auto",
                            kv_cache_dtype=asked.get("kv_cache_dtype") or "auto")
    trace = resolve(checkpoint, load_engine("vllm", "0.32.0"), find_gpu(gpu), deployment)
    given = {"max_num_batched_tokens": 8192, **{k: asked[k] for k in FLAGS if k in asked}, **flags}
    return kv_cache(checkpoint, model_structure(checkpoint), trace, deployment,
                    MemoryFlags(**given), version=row["version"], dtype=trace.dtype)


def values(printed: Any) -> list[float]:
    return printed if isinstance(printed, list) else [printed]


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row['id']} {row['model']}")
def test_what_the_log_prints(row: dict[str, Any]) -> None:
    cache, printed = cache_of(row), row["printed"]
    gib = values(printed["kv_gib"])
    least = int(min(gib) * 2**30 - ROUNDING_BYTES)
    most = int(max(gib) * 2**30 + ROUNDING_BYTES)
    assert all(cache.printed_tokens(least) <= tokens <= cache.printed_tokens(most)
               for tokens in values(printed["kv_tokens"]))
    for concurrency in values(printed.get("concurrency", [])):
        assert cache.max_concurrency(least) - 0.005 <= concurrency
        assert concurrency <= cache.max_concurrency(most) + 0.005


def test_many_rows_are_asked() -> None:
    assert len(PRINTED) >= 45


@pytest.mark.parametrize("version", ["0.21.0", "0.25.1", "0.27.0", "0.32.0"])
def test_a_hybrid_with_a_draft_of_its_own(version: str) -> None:
    """mem-091, club-3090 #487: two RTX 3090, MTP with three tokens, prefixes cached; the log names
    no version, and all these say 612,157 tokens and 2.34 requests."""
    row = {**truth_row("mem-091"), "version": version}
    cache = cache_of(row, "rtx-3090", enable_prefix_caching=True, speculative_config={
        "method": "mtp", "num_speculative_tokens": 3})
    available = int(row["printed"]["kv_gib"] * 2**30)
    assert cache.printed_tokens(available) == row["printed"]["kv_tokens"] == 612157
    assert round(cache.max_concurrency(available), 2) == row["printed"]["concurrency"]
