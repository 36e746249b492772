"""Quantized models of families against vLLM 0.32.0: wrapper_answers.jsonl (wrappers around language
models) and dense_answers.jsonl hold, per config, what the engine decided for every layer (indices,
method, kernel, attention backend), or its error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from quantplan.tables.errors import CheckpointError

from quantplan import explain

ROWS = [json.loads(line) for name in ("wrapper_answers.jsonl", "dense_answers.jsonl")
        for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()]


def decided(layers: list[dict[str, Any]]) -> dict[tuple[str, int | None], list[str | None]]:
    """Return (path, layer) -> method, kernel and attention backend, without embeddings."""
    return {(row["path"], index): [row["method"], row["kernel"], row.get("attn_backend")]
            for row in layers if row["module"] != "VocabParallelEmbedding"
            for index in row["indices"] or (None,)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_layers_are_served_as_the_engine_serves_them(row: dict[str, Any]) -> None:
    found = explain(row["config"], engine="vllm", engine_version="0.32.0",
                    **row["options"]).to_dict()
    error = found["error"]
    assert row["error"] == (error and [error["type"], error["message"]])
    if row["error"] is None:
        assert decided(found["layers"]) == {
            (path, index): answer for path, answers in row["layers"].items()
            for layers, *answer in answers for index in layers or (None,)}


@pytest.mark.parametrize(("name", "field", "value", "told"), [
    ("laguna/fp8", "num_attention_heads_per_layer", [48], "a list of 4 numbers; found [48]"),
    ("laguna/fp8", "num_attention_heads_per_layer", [48, 64, 64, "x"],
     "a positive integer; found 'x'"),
    ("g4/fp8", "moe_intermediate_size", None, "a positive integer; found nothing"),
])
def test_a_size_that_a_layer_lacks_is_named(
    name: str, field: str, value: Any, told: str
) -> None:
    row = next(row for row in ROWS if row["id"].startswith(name))
    with pytest.raises(CheckpointError, match=re.escape(f"config.json: {field}; wanted {told}")):
        explain({**row["config"], field: value}, engine="vllm", engine_version="0.32.0",
                **row["options"])
