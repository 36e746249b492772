"""What model classes ask while they are built: the engine's answers to bundled models with few
layers and changed sizes (vLLM 0.32.0, unquantized)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.bundled import bundled_checkpoint

from quantplan import Explanation, explain
from quantplan.oracle.grid_models import cut, grid_models

NO_GROUPS = {"n_group": None, "topk_group": None}
FEW_EXPERTS = "Tensor parallel size 16 is greater than the number of experts 8."
ONE_GROUP = ("If tensor parallel world size does not divide num_groups, then num_groups must equal "
             "1.")


def config_of(name: str) -> dict[str, Any]:
    """Return the config of the bundled model NAME with few layers."""
    checkpoint = bundled_checkpoint(name)
    assert checkpoint is not None
    return cut(checkpoint.config)


def answer(name: str, capability: str, tp: int, **changes: Any) -> Explanation:
    """Return the answer for the bundled model NAME without its quantization, cut and changed."""
    config = {key: value for key, value in config_of(name).items() if key != "quantization_config"}
    return explain({**config, **changes}, engine_version="0.32.0", capability=capability, tp=tp)


@pytest.mark.parametrize(("name", "tp", "changes", "kind", "message"), [
    ("deepseek-r1", 1, {"hidden_act": "gelu"}, "ValueError",
     "Unsupported activation: gelu. Only silu is supported for now."),
    ("deepseek-r1", 1, NO_GROUPS, "ValueError",
     "num_expert_group and topk_group must be provided when use_grouped_topk is True"),
    ("qwen3-30b-a3b", 16, {"num_experts": 8}, "ValueError", FEW_EXPERTS),
    ("minimax-m2.5", 16, {"num_local_experts": 8}, "ValueError", FEW_EXPERTS),
    ("nemotron-h-56b", 8, {"mamba_num_heads": 12, "n_groups": 4}, "AssertionError",
     "Tensor parallel world size must divide num heads."),
    ("nemotron-h-56b", 8, {"n_groups": 4}, "AssertionError", ONE_GROUP),
])
def test_a_class_refuses(
    name: str, tp: int, changes: dict[str, Any], kind: str, message: str
) -> None:
    error = answer(name, "9.0", tp, **changes).trace.error
    assert error is not None
    assert (error.type, error.message) == (kind, message)


@pytest.mark.parametrize(("name", "tp", "changes"), [
    ("deepseek-r1", 16, {"n_routed_experts": 8, "n_group": 1, "topk_group": 1}),
    ("nemotron-h-56b", 8, {"n_groups": 1}),
    ("nemotron-3-ultra-550b-a55b", 1, {}),
])
def test_a_class_does_not_ask(name: str, tp: int, changes: dict[str, Any]) -> None:
    """DeepSeek's experts may be fewer than ranks; one Mamba group is copied to every rank."""
    assert answer(name, "9.0", tp, **changes).trace.error is None


@pytest.mark.parametrize(("capability", "tp", "names"), [
    ("10.3", 8, {"fused_qkv_a_proj", "q_b_proj"}),
    ("10.3", 4, {"fused_qkv_a_proj"}),
    ("10.0", 8, set()),
])
def test_glm_replaces_methods_of_small_shapes(capability: str, tp: int, names: set[str]) -> None:
    layers = answer("glm-5", capability, tp).trace.layers
    assert {layer.path.rsplit(".", 1)[-1] for layer in layers
            if layer.method == "GLM52LowLatencyLinearMethod"} == names


@pytest.mark.parametrize(("name", "changes", "tp", "inner"), [
    ("deepseek-v4-pro", {}, 16, 256),  # 24 blocks of 128 over 16 ranks
    ("deepseek-v4-flash", {}, 16, 128),
    ("deepseek-v4-flash", {"moe_intermediate_size": 1664}, 2, 896),  # 13 blocks over 2 ranks
    ("deepseek-v4-flash", {"moe_intermediate_size": 1664}, 4, 512),
])
def test_shared_experts_are_padded_to_whole_blocks(
    name: str, changes: dict[str, Any], tp: int, inner: int
) -> None:
    config = {**config_of(name), **changes}
    trace = explain(config, engine_version="0.32.0", capability="10.0", tp=tp).trace
    sizes = {(layer.path.rsplit(".", 1)[-1], layer.n, layer.k) for layer in trace.layers
             if "shared_experts" in layer.path}
    hidden = config["hidden_size"]
    assert sizes == {("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)}


ASKED = Path(__file__).parents[1] / "golden" / "families-vllm-0.32.0.jsonl"


def asked(name: str, tp: int, capability: str = "9.0", **changes: Any) -> Explanation:
    """Return the answer for the config of a golden case, changed."""
    cases = (json.loads(line) for line in ASKED.read_text(encoding="utf-8").splitlines())
    config = next(case["config"] for case in cases if case["id"] == name)
    return explain({**config, **changes}, engine_version="0.32.0", capability=capability, tp=tp,
                   trust_remote_code=True)


@pytest.mark.parametrize(("name", "tp", "changes", "message", "layer"), [
    ("kimilinear/tp8", 1, {"hidden_act": "gelu"},
     "Unsupported activation: gelu. Only silu and situ are supported.",
     "model.layers.0.mlp.down_proj"),
    ("bailing25/tp2", 8, {}, "tp_size must be <= group_norm_size for local rms norm",
     "model.layers.0.self_attn.dense"),
    ("bailing25/tp2", 1, {"use_bias": True, "use_qkv_bias": True},
     "When not reduce the results, adding bias to the results can lead to incorrect results",
     "model.layers.1.mlp.shared_experts.down_proj"),
])
def test_a_class_refuses_a_changed_config(
    name: str, tp: int, changes: dict[str, Any], message: str, layer: str
) -> None:
    error = asked(name, tp, **changes).trace.error
    assert error is not None
    assert (error.message, error.layer) == (message, layer)


def test_experts_keep_256_features_on_every_rank() -> None:
    """Kimi-Linear has 1024: 8 ranks hold 256 of 2048, of 3 matrices, 256 experts and 2304."""
    layers = asked("kimilinear/tp8", 8).trace.layers
    assert {x.weights for x in layers if x.moe_backend} == {3 * 256 * 2304 * 256}


def test_methods_of_measured_shapes_are_replaced() -> None:
    """The layers of Kimi-K3's decoder on 8 ranks of a 9.0 that the engine's table names."""
    layers = asked("k3text/tp8", 8).trace.layers
    found = {(x.method, f"{x.n}x{x.k}") for x in layers if "LowLatency" in str(x.method)}
    linear = ("6288x7168", "1536x128", "7168x1536", "7168x4224", "1536x7168", "7168x768",
              "3584x7168", "7168x3584", "2304x1536")
    assert found == {("KimiK3LowLatencyEmbeddingMethod", "20480x7168"),
                     *(("KimiK3LowLatencyLinearMethod", shape) for shape in linear)}


def test_minimax_m3_computes_swigluoai_only() -> None:
    """models/minimax_m3/nvidia/model.py:MiniMaxM3MLP, after it has built down_proj."""
    config = grid_models()["MiniMaxM3SparseForConditionalGeneration"][0]
    text = {**config["text_config"], "hidden_act": "silu"}
    error = explain({**config, "text_config": text}, engine_version="0.32.0", capability=90
                    ).trace.error
    assert error is not None and error.message == (
        "Unsupported activation: silu. Only swigluoai is supported.")


@pytest.mark.parametrize(("architecture", "tp", "message"), [
    ("GlmForCausalLM", 2, "3 is not divisible by 2"),
    ("GlmForCausalLM", 4, "4 is not divisible by 3"),
    ("LlamaForCausalLM", 2, "")])
def test_who_says_which_heads_do_not_divide(architecture: str, tp: int, message: str) -> None:
    """Llama's own attention asserts without words; Transformers' GLM leaves it to
    QKVParallelLinear."""
    model_type = {"GlmForCausalLM": "glm", "LlamaForCausalLM": "llama"}[architecture]
    config = {"architectures": [architecture], "model_type": model_type, "hidden_size": 1536,
              "intermediate_size": 5632, "num_hidden_layers": 2, "num_attention_heads": 12,
              "num_key_value_heads": 3, "head_dim": 128, "vocab_size": 32064,
              "hidden_act": "silu", "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
    error = explain(config, engine_version="0.32.0", capability=90, tp=tp).trace.error
    assert error is not None and error.message == message


@pytest.mark.parametrize(("experts", "mlp"), [
    (1, "feed_forward.gate_up_proj"), (2, "feed_forward.experts.routed_experts")])
def test_jamba_with_one_expert_has_none(experts: int, mlp: str) -> None:
    """JambaConfig.layers_num_experts, and jamba.py, which builds experts for more than one (as in
    AI21-Jamba-Reasoning-3B)."""
    config = {**grid_models()["JambaForCausalLM"][0], "num_experts": experts}
    answered = explain(config, engine_version="0.32.0", capability=90)
    assert answered.trace.error is None
    assert f"model.layers.1.{mlp}" in {layer.path for layer in answered.trace.layers}
