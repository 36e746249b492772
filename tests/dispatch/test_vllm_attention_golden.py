"""Attention against vLLM 0.32.0's own selection code, run for an emulated GPU
(tests/golden/attention-vllm-0.32.0.jsonl.gz): backend, KV dtype, KV method and prefill backend of
every module that attends, or the error."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import selection_only

from quantplan import Explanation, explain

FILE = Path(__file__).parents[1] / "golden" / "attention-vllm-0.32.0.jsonl.gz"
with gzip.open(FILE, "rt", encoding="utf-8") as lines:
    ROWS = [json.loads(line) for line in lines]
REFUSED = [row for row in ROWS if row["expect"]["error"]]
CHOSEN = [row for row in ROWS if not row["expect"]["error"]]
UNTOLD = {"DeepseekV4FlashMLAAttention", "DeepseekV4FlashInferSM120Attention"}
"""Modules whose cache dtype the recorded answers do not hold."""


def answer(case: dict[str, Any]) -> Explanation:
    """Return our answer to a case."""
    same = {name: case[name] for name in ("dtype", "kv_cache_dtype", "libs", "env") if name in case}
    return explain(case["config"], engine_version="0.32.0", capability=case["capability"],
                   tp=case.get("tp_size", 1), **same, **case.get("engine_args", {}))


def attention(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a row of our JSON says of attention."""
    names = ("module", "attn_backend", "kv_cache_dtype", "method", "prefill_backend")
    told = {**row, "kv_cache_dtype": None} if row["module"] in UNTOLD else row
    return tuple(told.get(name) for name in names)


@pytest.mark.parametrize("row", REFUSED, ids=[row["id"] for row in REFUSED])
def test_what_the_engine_refuses(row: dict[str, Any]) -> None:
    error = answer(row["case"]).trace.error
    assert error is not None
    assert [error.type, error.message] == row["expect"]["error"]


@pytest.mark.parametrize("row", CHOSEN, ids=[row["id"] for row in CHOSEN])
def test_what_the_engine_chooses(row: dict[str, Any]) -> None:
    view = selection_only(answer(row["case"]).to_dict())
    assert view["outcome"] == "ok"
    ours = {(r["path"], index): attention(r) for r in view["layers"]
            for index in r["indices"] or [None]}
    wanted = {(path, index): tuple(rest) for path, layers, *rest in row["expect"]["attention"]
              for index in layers or _indices(ours, path)}
    assert {place: ours[place] for place in wanted} == wanted


def _indices(ours: dict[tuple[str, Any], Any], path: str) -> list[Any]:
    """Return the layers that a row without layers stands for: every one."""
    return [index for other, index in ours if other == path]


def test_the_rows_are_of_every_kind() -> None:
    told = [entry for row in ROWS for entry in row["expect"]["attention"]]
    assert {entry[2] for entry in told} >= {
        "Attention", "MLAAttention", "DeepseekV32Attention", "DeepseekV32IndexerCache",
        "MMEncoderAttention", "MambaMixer2", "QwenGatedDeltaNetAttention", "DeepseekV4SWACache",
        "ChunkedLocalAttention", "MiniMaxM3SparseAttention", *UNTOLD}
    assert len({entry[3] for entry in told}) >= 30
