"""From a config to the engine's layers: fused leaves, sizes, biases, ties; and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, QWEN_72B
from quantplan.dispatch.bundled import bundled_checkpoint, bundled_models
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.structure import Structure
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.family_loading import families_by_architecture
from quantplan.tables.load import read_table

QWEN3_4B: dict[str, Any] = {
    **LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560,
    "intermediate_size": 9728, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
}
NEMO: dict[str, Any] = {
    **LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 5120,
    "head_dim": 128, "vocab_size": 131072,
}


def structure(config: dict[str, Any], **changes: Any) -> Structure:
    """Return the structure of CONFIG; a change to ... removes the field."""
    merged = {k: v for k, v in {**config, **changes}.items() if v is not ...}
    return model_structure(Checkpoint("x", "mapping", merged))


def leaves(found: Structure) -> dict[str, tuple[int, int | None]]:
    """Return leaf path -> (n, k)."""
    return {module.leaf_path(leaf.name): (leaf.n, leaf.k)
            for module in found.modules for leaf in module.leaves}


# Sizes: those of the hub's safetensors headers.


def test_llama_3_1_8b() -> None:
    assert leaves(structure(LLAMA)) == {
        "model.embed_tokens": (128256, 4096),
        "model.layers.*.self_attn.q_proj": (4096, 4096),
        "model.layers.*.self_attn.k_proj": (1024, 4096),
        "model.layers.*.self_attn.v_proj": (1024, 4096),
        "model.layers.*.self_attn.o_proj": (4096, 4096),
        "model.layers.*.mlp.gate_proj": (14336, 4096),
        "model.layers.*.mlp.up_proj": (14336, 4096),
        "model.layers.*.mlp.down_proj": (4096, 14336),
        "model.layers.*.input_layernorm": (4096, None),
        "model.layers.*.post_attention_layernorm": (4096, None),
        "model.norm": (4096, None), "lm_head": (128256, 4096)}


def test_qwen3_norms_queries_and_keys_per_head() -> None:
    """Qwen3-4B: 32 heads of 128 features are more than the 2560 of the residual stream."""
    found = leaves(structure(QWEN3_4B))
    assert found["model.layers.*.self_attn.q_norm"] == (128, None)
    assert found["model.layers.*.self_attn.k_norm"] == (128, None)
    assert found["model.layers.*.self_attn.q_proj"] == (4096, 2560)
    assert found["model.layers.*.self_attn.o_proj"] == (2560, 4096)


@pytest.mark.parametrize("config", [LLAMA, QWEN_72B, NEMO])
def test_other_families_have_no_head_norms(config: dict[str, Any]) -> None:
    assert not [path for path in leaves(structure(config)) if path.endswith(("q_norm", "k_norm"))]


def test_layers_are_fused_as_the_engine_packs_them() -> None:
    """packed_modules_mapping of LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM."""
    for config in (LLAMA, QWEN_72B, QWEN3_4B, NEMO):
        assert structure(config).packed == {
            "qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def test_the_engine_s_classes_in_its_order() -> None:
    built = [(module.path.split(".")[-1], module.module) for module in structure(LLAMA).modules
             if module.module != "RMSNorm"]
    assert built == [
        ("embed_tokens", "VocabParallelEmbedding"), ("qkv_proj", "QKVParallelLinear"),
        ("o_proj", "RowParallelLinear"), ("attn", "Attention"),
        ("gate_up_proj", "MergedColumnParallelLinear"), ("down_proj", "RowParallelLinear"),
        ("lm_head", "ParallelLMHead")]


# Head size.


@pytest.mark.parametrize("config, changes, head_dim", [
    (LLAMA, {}, 128), (LLAMA, {"head_dim": 64}, 64), (LLAMA, {"head_dim": None}, 128),
    (NEMO, {}, 128), (NEMO, {"head_dim": ...}, 160), (QWEN_72B, {}, 128),
    (QWEN_72B, {"head_dim": 64}, 128), (QWEN3_4B, {}, 128), (QWEN3_4B, {"head_dim": ...}, 128)])
def test_the_head_size(config: dict[str, Any], changes: dict[str, Any], head_dim: int) -> None:
    """llama.py and qwen3.py read head_dim; qwen2.py derives it; Qwen3Config defaults to 128."""
    sizes = structure(config, **changes).sizes
    assert sizes["head_dim"] == head_dim
    assert sizes["q_size"] == 32 * head_dim or config is QWEN_72B


@pytest.mark.parametrize("given", [None, ...])
def test_kv_heads_default_to_the_query_heads(given: Any) -> None:
    sizes = structure(LLAMA, num_key_value_heads=given).sizes
    assert (sizes["num_key_value_heads"], sizes["kv_size"]) == (32, 4096)


# Biases and ties.


@pytest.mark.parametrize("config, changes, biased", [
    (LLAMA, {}, set()), (LLAMA, {"attention_bias": True}, {"qkv_proj", "o_proj"}),
    (LLAMA, {"mlp_bias": True}, {"gate_up_proj", "down_proj"}),
    (LLAMA, {"bias": True}, {"qkv_proj", "o_proj"}), (QWEN_72B, {}, {"qkv_proj"}),
    (QWEN3_4B, {}, set()), (QWEN3_4B, {"attention_bias": True}, {"qkv_proj"})])
def test_biases(config: dict[str, Any], changes: dict[str, Any], biased: set[str]) -> None:
    """llama.py: attention_bias or bias for qkv and o, mlp_bias; qwen2.py: qkv always, o never."""
    modules = structure(config, **changes).modules
    assert {module.path.split(".")[-1] for module in modules if module.bias} == biased


@pytest.mark.parametrize("value, tied", [(True, True), (False, False), (None, False), (..., False)])
def test_ties(value: Any, tied: bool) -> None:
    assert structure(LLAMA, tie_word_embeddings=value).tied is tied


# Which family.


@pytest.mark.parametrize("changes, architecture, family", [
    ({}, "LlamaForCausalLM", "llama"), ({"architectures": ["LLaMAForCausalLM"]},
                                        "LLaMAForCausalLM", "llama"),
    ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM", "llama"),
    ({"architectures": None}, "LlamaForCausalLM", "llama"),
    ({"architectures": [], "model_type": "qwen3"}, "Qwen3ForCausalLM", "qwen3"),
    ({"architectures": ["Qwen2ForCausalLM", "Other"]}, "Qwen2ForCausalLM", "qwen2")])
def test_the_architecture_decides(changes: dict[str, Any], architecture: str, family: str) -> None:
    found = structure(LLAMA, **changes)
    assert (found.architecture, found.family) == (architecture, family)


@pytest.mark.parametrize("changes, named", [
    ({"architectures": ["BambooForCausalLM"]}, "BambooForCausalLM"),
    ({"architectures": ["A", "B"]}, "A"),
    ({"architectures": ["BambooForCausalLM", "LlamaForCausalLM"]}, "BambooForCausalLM"),
    ({"architectures": None, "model_type": "bamboo"}, "model_type bamboo"),
    ({"architectures": None, "model_type": None}, "model_type None")])
def test_an_unknown_family_is_named_never_guessed(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NotKnownError) as raised:
        structure(LLAMA, **changes)
    known = ", ".join(sorted(families_by_architecture()))
    assert str(raised.value) == (
        f"no family row for the architecture {named}; wanted one of {known}. Its layers are not "
        "guessed; a row in tables/families/ teaches it.")


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "intermediate_size",
                                   "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("value, found", [(None, "nothing"), (0, "0"),
                                          (-1, "-1"), ("4096", "'4096'"), (4096.0, "4096.0"),
                                          (True, "True")])
def test_a_size_that_is_none_is_named(field: str, value: Any, found: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        structure(LLAMA, **{field: value})
    assert str(raised.value) == f"config.json: {field}; wanted a positive integer; found {found}"


@pytest.mark.parametrize("field, value", [
    ("num_hidden_layers", 32), ("hidden_size", 4096), ("intermediate_size", 11008),
    ("num_attention_heads", 32), ("vocab_size", 32000)])
def test_a_size_that_is_left_out_is_the_class_s_and_told(field: str, value: int) -> None:
    """transformers 5.19.0 models/llama/configuration_llama.py:LlamaConfig."""
    found = structure(LLAMA, **{field: ...})
    assert found.sizes[field] == value
    assert found.left_out is not None
    assert found.left_out.message == (
        f"config.json leaves out {field}; the engine takes what the config class has: "
        f"{field} {value}")
    assert structure(LLAMA).left_out is None


# The tables behind it.


def test_every_bundled_model_has_a_family() -> None:
    for row in bundled_models():
        checkpoint = bundled_checkpoint(str(row["id"]))
        assert checkpoint is not None
        config = checkpoint.config
        layers = config.get("num_hidden_layers") or len(config["layers_block_type"])
        assert model_structure(checkpoint).num_layers == layers


def test_a_model_type_leads_to_an_architecture_of_its_own_row() -> None:
    for family in read_table("families/dense")["families"]:
        assert set(family["model_types"].values()) <= set(family["architectures"])
