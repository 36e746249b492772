"""Rotary tables, against the engine's own.

rotary_answers.jsonl: vLLM 0.32.0 built each model on tensors without values; `tables` are the bytes
of its distinct cos_sin_cache buffers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from known_models import model
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.planner.rotary import RotaryTable, rotary_tables
from quantplan.tables.errors import NotKnownError

ANSWERS = [json.loads(line) for line in
           (Path(__file__).parent / "rotary_answers.jsonl").read_text().splitlines()]


def tables(checkpoint: Checkpoint, dtype: str = "bfloat16") -> tuple[RotaryTable, ...]:
    """Return the tables of a checkpoint."""
    return rotary_tables(checkpoint.text_config, model_structure(checkpoint), dtype)


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: str(row["config"]["architectures"][0]))
def test_tables_are_the_engines(row: dict[str, Any]) -> None:
    found = tables(Checkpoint("m", "mapping", row["config"]), row["dtype"])
    assert sorted(table.bytes for table in found) == row["tables"]


# rotary_embedding/*.py: linear and yarn keep factor times as many positions, longrope both tables.
@pytest.mark.parametrize("scaling, rows", [
    (None, 131072), ({"rope_type": "llama3", "factor": 8.0}, 131072),
    ({"rope_type": "linear", "factor": 4.0}, 4 * 131072),
    ({"rope_type": "dynamic", "factor": 4.0}, 131072),
    ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
    ({"type": "longrope", "original_max_position_embeddings": 4096}, 135168),
])
def test_scaling_decides_the_positions(scaling: dict[str, Any] | None, rows: int) -> None:
    (found,) = tables(model("llama-3.1-8b", rope_scaling=scaling))
    assert (found.rows, found.features, found.bytes) == (rows, 128, rows * 128 * 2)


def test_a_float32_model_has_a_float32_table() -> None:
    (found,) = tables(model("llama-3.1-8b"), "float32")
    assert found.bytes == 131072 * 128 * 4


def test_an_unknown_rope_is_named() -> None:
    with pytest.raises(NotKnownError, match="rope_type spiral"):
        tables(model("llama-3.1-8b", rope_scaling={"rope_type": "spiral"}))


# sglang 0.5.22 layers/rotary_embedding/base.py: float32 on CUDA; mrope.py: as many positions;
# rope_variant.py: dynamic has factor times as many, longrope a short, a long and a joined table.
@pytest.mark.parametrize("scaling, rows, element", [
    (None, 131072, 4), ({"rope_type": "default", "mrope_section": [16, 24, 24]}, 131072, 4),
    ({"rope_type": "dynamic", "factor": 4.0}, 4 * 131072, 4),
    ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072, 4),
    ({"type": "longrope", "original_max_position_embeddings": 4096}, 2 * 135168, 2),
])
def test_sglang_keeps_float32(scaling: dict[str, Any] | None, rows: int, element: int) -> None:
    checkpoint = model("llama-3.1-8b", rope_scaling=scaling)
    (found,) = rotary_tables(checkpoint.text_config, model_structure(checkpoint), "bfloat16",
                             engine="sglang")
    assert found.bytes == rows * 128 * element
