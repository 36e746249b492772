"""Wrappers around language models: which of these a wrapper takes, and where its tower ends. Their
configs are those of wrapper_answers.jsonl (test_family_answers.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.tables.errors import NotKnownError

from quantplan import explain
from quantplan.oracle.grid_models import grid_models

LINES = (Path(__file__).parent / "wrapper_answers.jsonl").read_text(encoding="utf-8").splitlines()
ROWS = [json.loads(line) for line in LINES]


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


@pytest.mark.parametrize(("model", "tower", "hidden", "intermediate", "layers"), [
    ("llava15", {"model_type": "pixtral"}, 1024, 4096, 23),
    ("llava15", {"model_type": "siglip_vision_model"}, 768, 3072, 11),
    ("llava15", {}, 768, 3072, 11),
    ("llava15", None, 1024, 4096, 23),
    ("qwen25vl", {"hidden_size": 1280}, 1280, 3420, 32),
    ("qwen25vl", None, 3584, 3420, 32),
    ("qwen3vl", {"depth": 2}, 1152, 4304, 2)])
def test_a_towers_class_fills_in_its_sizes(
    model: str, tower: Any, hidden: int, intermediate: int, layers: int
) -> None:
    """LlavaConfig and the vision configs of Transformers 5.19.0; the engine's layers have these
    sizes. LLaVA reads the second last of its tower's layers."""
    architecture = {"qwen25vl": "Qwen2_5_VLForConditionalGeneration",
                    "qwen3vl": "Qwen3VLForConditionalGeneration"}.get(model)
    config = {**(grid_models()[architecture][0] if architecture else wrapped(model))}
    del config["vision_config"]
    sizes = model_structure(Checkpoint("x", "mapping", {
        **config, **({} if tower is None else {"vision_config": tower})})).sizes
    assert (sizes["vision_hidden"], sizes["vision_intermediate"], sizes["vision_layers"]) == (
        hidden, intermediate, layers)


@pytest.mark.parametrize(("feature_layer", "layers"), [(-1, 3), (-2, 2), (1, 1), ([-2, -3], 2)])
def test_the_tower_ends_at_the_deepest_layer_that_is_read(
    feature_layer: int | list[int], layers: int
) -> None:
    """model_executor/models/llava.py:_get_num_hidden_layers of a tower of three layers."""
    config = {**wrapped("llava15"), "vision_feature_layer": feature_layer}
    assert model_structure(Checkpoint("x", "mapping", config)).sizes["vision_layers"] == layers


@pytest.mark.parametrize("architecture", [
    "Qwen3VLForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration"])
def test_a_towers_heads_divide_over_the_ranks(architecture: str) -> None:
    """distributed/utils.py:divide, which the towers' attention asks before its projections."""
    config = {**grid_models()[architecture][0]}
    config.pop("quantization_config", None)
    config["text_config"] = {**config["text_config"], "num_attention_heads": 24,
                             "num_key_value_heads": 3, "head_dim": 128}
    error = explain(config, engine="vllm", engine_version="0.32.0", capability=90, tp=3
                    ).to_dict()["error"]
    assert (error["type"], error["message"]) == ("AssertionError", "16 is not divisible by 3")


def test_kimis_tower_is_whole_on_every_rank_where_its_heads_do_not_divide() -> None:
    """model_executor/models/vision.py:is_vit_use_data_parallel; the embedding is refused next."""
    config = {**grid_models()["KimiK25ForConditionalGeneration"][0]}
    config["text_config"] = {**config["text_config"], "num_attention_heads": 24,
                             "num_key_value_heads": 3}
    error = explain(config, engine="vllm", engine_version="0.32.0", capability=90, tp=3,
                    trust_remote_code=True).to_dict()["error"]
    assert error["message"] == "163840 is not divisible by 3"


def test_a_version_of_minicpm_v_without_rows_is_not_known() -> None:
    """model_executor/models/minicpmv.py:MiniCPMV builds another language model in each version."""
    config = next(row["config"] for row in ROWS if row["id"].startswith("minicpmv26"))
    with pytest.raises(NotKnownError, match=r"with version 2\.0"):
        model_structure(Checkpoint("x", "mapping", {**config, "version": "2.0"}))
