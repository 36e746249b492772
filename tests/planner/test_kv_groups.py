"""Groups, blocks and printed figures against vLLM's own functions (v1/core/kv_cache_utils.py and
kv_cache_planning.py: get_kv_cache_configs, get_kv_cache_capacity), asked on a CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from kv_layouts import LAYOUTS
from quantplan.planner.kv_pool import Pool, make_pool
from quantplan.planner.kv_spec import STATE, Use
from quantplan.tables.kv_cache_rows import kv_rules

ANSWERS = [json.loads(line) for line in
           (Path(__file__).parent / "kv_answers.jsonl").read_text().splitlines()]


def pool_of(row: dict[str, Any]) -> Pool:
    specs = LAYOUTS[row["layout"]]
    states = any(spec.kind == STATE for spec in specs.values())
    use = Use(row["max_model_len"], 2 * row["batch"], row["dcp"], 0, states)
    return make_pool(specs, kv_rules(row["version"]), use, pp=row["pp"],
                     num_layers=61 if row["layout"] == "dsv32" else len(specs),
                     override_blocks=row["override"], packs=row["layout"] == "dsv4-flash")


def named(row: dict[str, Any]) -> str:
    asked = (f"{key}={row[key]}" for key in ("gib", "max_model_len", "dcp", "override", "pp"))
    return f"{row['version']} {row['layout']} {' '.join(asked)}"


@pytest.mark.parametrize("row", ANSWERS, ids=named)
def test_the_engine_says_the_same(row: dict[str, Any]) -> None:
    pool, available = pool_of(row), int(row["gib"] * 2**30)
    refusal = pool.refusal(available, row["max_model_len"])
    if "error" in row:
        assert refusal is not None
        assert row["error"].startswith(f"ValueError: {refusal}")
        return
    assert refusal is None
    assert sorted(len(group.layers) for group in pool.groups) == row["groups"]
    assert pool.blocks(available) == row["blocks"]
    assert pool.printed_tokens(available, row["max_model_len"]) == row["tokens"]
    assert math.isclose(pool.max_concurrency(available, row["max_model_len"]), row["concurrency"])


def test_answers_were_asked_of_both_engines() -> None:
    assert {row["version"] for row in ANSWERS} == {"0.32.0", "0.33.0"}
    assert {row["layout"] for row in ANSWERS} == set(LAYOUTS)
