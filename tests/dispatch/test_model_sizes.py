"""Sizes as rows say them, and layer kinds as the config lays them out."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.dispatch.layer_kinds import layer_kinds
from quantplan.dispatch.model_sizes import model_sizes
from quantplan.tables.errors import CheckpointError, NotKnownError

HEADS = [
    {"id": "q_size", "product": ["heads", "dim"]},
    {"id": "hidden", "fields": ["hidden_size"]},
    {"id": "heads", "fields": ["num_attention_heads"]},
    {"id": "kv", "fields": ["num_key_value_heads"], "default_by_type": {"mistral": 8},
     "default_size": "heads"},
    {"id": "derived", "quotient": ["hidden", "heads"]},
    {"id": "dim", "fields": ["head_dim"], "default_size": "derived"},
]
CONFIG = {"hidden_size": 4096, "num_attention_heads": 32}


def test_rows_may_stand_before_what_they_name() -> None:
    assert model_sizes(HEADS, CONFIG, CONFIG) == {
        "q_size": 4096, "hidden": 4096, "heads": 32, "kv": 32, "derived": 128, "dim": 128}


@pytest.mark.parametrize(("changes", "kv"), [
    ({"model_type": "mistral"}, 8),
    ({"model_type": "mistral", "num_key_value_heads": None}, 32),
    ({"model_type": "mistral", "num_key_value_heads": 4}, 4),
    ({"model_type": "llama"}, 32),
])
def test_a_null_field_takes_the_other_size(changes: dict[str, Any], kv: int) -> None:
    """transformers' MistralConfig: 8 when absent; null becomes num_attention_heads."""
    config = CONFIG | changes
    assert model_sizes(HEADS, config, config)["kv"] == kv


def test_a_later_row_and_a_row_for_the_kind_win() -> None:
    rows = [*HEADS, {"id": "dim", "fields": ["global_head_dim"], "at": "full"}]
    config = CONFIG | {"head_dim": 256, "global_head_dim": 512}
    assert model_sizes(rows, config, config)["q_size"] == 32 * 256
    assert model_sizes(rows, config, config, ("full",))["q_size"] == 32 * 512


def test_an_optional_size_is_left_out_with_what_is_made_of_it() -> None:
    rows = [{"id": "rank", "fields": ["q_lora_rank"], "optional": True},
            {"id": "both", "sum": ["rank", 64]}]
    assert model_sizes(rows, {}, {}) == {}
    assert model_sizes(rows, {"q_lora_rank": 1536}, {}) == {"rank": 1536, "both": 1600}


def test_a_size_elsewhere_in_the_config() -> None:
    rows = [{"id": "depth", "fields": ["depth"], "from": ["vision_config"]}]
    assert model_sizes(rows, {}, {"vision_config": {"depth": 27}}) == {"depth": 27}
    with pytest.raises(CheckpointError, match=r"config\.json: vision_config; wanted an object"):
        model_sizes(rows, {}, {})
    with pytest.raises(CheckpointError, match=r"config\.json: vision_config\.depth; wanted"):
        model_sizes(rows, {}, {"vision_config": {"depth": "27"}})


DEEPSEEK = {"rule": "first_dense",
            "fields": {"dense": "first_k_dense_replace", "step": "moe_layer_freq",
                       "experts": "n_routed_experts"},
            "defaults": {"dense": 0, "step": 1}}
QWEN = {"rule": "sparse_step",
        "fields": {"step": "decoder_sparse_step", "experts": "num_experts",
                   "dense_layers": "mlp_only_layers"}, "defaults": {"step": 1}}
TYPES = {"rule": "listed", "fields": {"types": "layer_types"},
         "kinds": {"sliding_attention": "sliding", "full_attention": "full"}}


def kinds(row: dict[str, Any], config: dict[str, Any], count: int) -> list[str]:
    return [next(iter(kind)) for kind in layer_kinds([row], config, count)]


def test_deepseek_v3_has_three_dense_layers() -> None:
    """config.json of deepseek-ai/DeepSeek-V3: first_k_dense_replace 3, moe_layer_freq 1."""
    config = {"first_k_dense_replace": 3, "moe_layer_freq": 1, "n_routed_experts": 256}
    assert kinds(DEEPSEEK, config, 5) == ["dense", "dense", "dense", "moe", "moe"]
    assert kinds(DEEPSEEK, config | {"n_routed_experts": None}, 2) == ["dense", "dense"]


def test_qwen_lists_its_dense_layers() -> None:
    config = {"num_experts": 128, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    assert kinds(QWEN, config, 6) == ["dense", "moe", "dense", "dense", "dense", "moe"]
    assert kinds(QWEN, config | {"num_experts": 0}, 2) == ["dense", "dense"]


def test_listed_types_fit_the_layers() -> None:
    config = {"layer_types": ["sliding_attention", "full_attention"]}
    assert kinds(TYPES, config, 2) == ["sliding", "full"]
    with pytest.raises(CheckpointError, match="wanted a list of 3 names"):
        kinds(TYPES, config, 3)
    with pytest.raises(NotKnownError, match="layer type 'mamba'"):
        kinds(TYPES, {"layer_types": ["mamba"]}, 1)


def test_a_count_that_is_no_number_is_refused() -> None:
    with pytest.raises(CheckpointError, match="first_k_dense_replace; wanted a whole number"):
        kinds(DEEPSEEK, {"first_k_dense_replace": "3"}, 4)
