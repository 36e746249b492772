"""Wrappers around language models against vLLM 0.32.0: wrapper_answers.jsonl holds, per quantized
config, what the engine decided for every layer (indices, method, kernel, attention backend), or its
error. Which language models a wrapper takes is tested here too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.tables.errors import NotKnownError

from quantplan import explain

LINES = (Path(__file__).parent / "wrapper_answers.jsonl").read_text(encoding="utf-8").splitlines()
ROWS = [json.loads(line) for line in LINES]


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


def wrapped(name: str, **text: Any) -> dict[str, Any]:
    """Return the config of the wrapper's first row, with other fields of its language model."""
    config = next(row["config"] for row in ROWS if row["id"].startswith(name))
    return {**config, "text_config": {**config["text_config"], **text}}


def test_a_language_model_without_rows_is_not_known() -> None:
    config = wrapped("llava15", architectures=["PhiForCausalLM"])
    with pytest.raises(NotKnownError, match="LlavaForConditionalGeneration around PhiForCausalLM"):
        model_structure(Checkpoint("x", "mapping", config))


def test_a_tower_without_rows_is_not_known() -> None:
    config = wrapped("llava15")
    config["vision_config"] = {**config["vision_config"], "model_type": "dinov2"}
    with pytest.raises(NotKnownError, match=r"vision_config\.model_type 'dinov2'"):
        model_structure(Checkpoint("x", "mapping", config))


@pytest.mark.parametrize(("feature_layer", "layers"), [(-1, 3), (-2, 2), (1, 1), ([-2, -3], 2)])
def test_the_tower_ends_at_the_deepest_layer_that_is_read(
    feature_layer: int | list[int], layers: int
) -> None:
    """model_executor/models/llava.py:_get_num_hidden_layers of a tower of three layers."""
    config = {**wrapped("llava15"), "vision_feature_layer": feature_layer}
    assert model_structure(Checkpoint("x", "mapping", config)).sizes["vision_layers"] == layers
