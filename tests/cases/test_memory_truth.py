"""The truth rows agree with themselves: what each log prints of its own arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from memory_truth import model_config, truth_row, truth_rows

PRINTED = [row for row in truth_rows() if {"engine_memory_gib", "non_kv_gib"} <= set(row["printed"])
           and not isinstance(row["printed"]["non_kv_gib"], list)]


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: str(row["id"]))
def test_what_is_left_is_what_the_log_says_is_left(row: dict[str, Any]) -> None:
    """vLLM 0.19 v1/worker/gpu_worker.py:determine_available_memory; figures have two decimals."""
    printed = row["printed"]
    parts = sum(printed[term] for term in ("weights_gib", "activations_gib", "non_torch_gib"))
    assert printed["non_kv_gib"] == pytest.approx(parts, abs=0.021)
    left = printed["engine_memory_gib"] - printed["non_kv_gib"]
    assert printed["kv_gib"] == pytest.approx(left, abs=0.011)
    assert printed["engine_memory_gib"] == pytest.approx(
        printed["memory_gib"] * row["asked"]["gpu_memory_utilization"], abs=0.01)


def test_every_dense_model_that_a_constant_was_fitted_to_has_a_config() -> None:
    assert [row["id"] for row in truth_rows()
            if row["fitted"] and model_config(row["model"]) is None] == []


def test_a_model_is_the_bundled_one_with_its_own_fields() -> None:
    found = model_config(truth_row("mem-037")["model"])
    assert found is not None
    assert (found["hidden_size"], found["max_position_embeddings"]) == (8192, 131072)
