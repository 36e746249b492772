"""SGLang's model classes with latent attention: what 0.5.22 itself answered to these configs."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import explain

MLA: dict[str, Any] = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 4, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "vocab_size": 129280, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
V3 = {**MLA, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
INDEXER = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
V32 = {**MLA, **INDEXER, "architectures": ["DeepseekV32ForCausalLM"],
       "model_type": "deepseek_v32"}
GLM = {**MLA, **INDEXER, "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa",
       "indexer_rope_interleave": True, "hidden_size": 6144}
BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
INT4 = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
               "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}}}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
         "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}


def layers(config: dict[str, Any], capability: int, **options: Any) -> dict[str, Any]:
    """Return path -> layer, without the layer's number."""
    answer = explain(config, engine="sglang", capability=capability, **options).to_dict()
    assert answer["error"] is None
    return {layer["path"].replace("model.layers.*.", ""): layer for layer in answer["layers"]}


def test_the_modules_of_deepseek_in_build_order() -> None:
    names = [*layers({**V3, "quantization_config": BLOCK}, 90)]
    assert names == [
        "model.embed_tokens", "self_attn.fused_qkv_a_proj_with_mqa", "self_attn.q_b_proj",
        "self_attn.kv_b_proj", "self_attn.o_proj", "self_attn.attn_mqa", "self_attn.attn_mha",
        "mlp.gate_up_proj", "mlp.down_proj", "mlp.experts", "lm_head"]


@pytest.mark.parametrize("config, names", [
    (V32, ["indexer.wq_b", "indexer.wk", "indexer.weights_proj"]),
    (GLM, ["indexer.wq_b", "indexer.wk_weights_proj"]),
    (V3, []),
    ({**V3, **INDEXER}, ["indexer.wq_b", "indexer.wk", "indexer.weights_proj"]),
])
def test_the_modules_of_the_indexer(config: dict[str, Any], names: list[str]) -> None:
    """Dsa/dsa_indexer.py:Indexer joins two of them where rotary embeddings are interleaved."""
    found = [name for name in layers(config, 90) if "indexer" in name]
    assert found == [f"self_attn.{name}" for name in names]


@pytest.mark.parametrize("config, capability, fused", [
    (V3, 80, True), (V3, 75, False), (V3, 100, False), (V32, 90, False), (GLM, 120, True),
    ({**V3, "n_routed_experts": 384}, 90, False),
    ({**V3, "quantization_config": NVFP4}, 120, True),
    ({**V3, "quantization_config": {**NVFP4, "ignore": ["*shared_experts*"]}}, 120, False),
    ({**V3, "quantization_config": INT4}, 90, False),
])
def test_where_shared_experts_are_among_the_routed_ones(
    config: dict[str, Any], capability: int, fused: bool
) -> None:
    assert ("mlp.shared_experts.down_proj" not in layers(config, capability)) is fused


@pytest.mark.parametrize("config, capability, asked, dtype", [
    (V32, 90, "auto", "bfloat16"), (V32, 100, "auto", "float8_e4m3fn"),
    (V32, 90, "bf16", "bfloat16"), (GLM, 90, "fp8_e4m3", "float8_e4m3fn"),
    ({**GLM, "quantization_config": NVFP4}, 80, "auto", "bfloat16"),
    ({**V3, "quantization_config": NVFP4}, 80, "auto", "float8_e4m3fn"),
])
def test_the_cache_of_sparse_attention(
    config: dict[str, Any], capability: int, asked: str, dtype: str
) -> None:
    answer = explain(config, engine="sglang", capability=capability, kv_cache_dtype=asked)
    assert answer.trace.kv_cache["resolved"] == dtype


def test_the_cache_of_sparse_attention_takes_two_dtypes() -> None:
    error = explain(V32, engine="sglang", capability=90, kv_cache_dtype="fp8_e5m2").trace.error
    assert error is not None and (error.type, error.message) == (
        "AssertionError", "DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype")


@pytest.mark.parametrize("options, kernel", [
    ({}, "nvfp4_gemm_swiglu_nvfp4_quant"),
    ({"fp4_gemm_backend": "flashinfer_trtllm"}, "fp4_gemm"),
    ({"env": {"SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16": "1"}}, "fp4_gemm"),
    ({"tp": 64}, "fp4_gemm"),
])
def test_shared_experts_of_nvfp4_fuse_their_activation(
    options: dict[str, Any], kernel: str
) -> None:
    """Models/deepseek_v2.py:DeepseekV2MoE sets it where a rank holds a multiple of 128 rows."""
    found = layers({**V3, "quantization_config": NVFP4}, 100, **options)
    assert found["mlp.shared_experts.gate_up_proj"]["kernel"] == kernel


LITE = {**MLA, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
        "hidden_size": 2048, "num_attention_heads": 20, "n_routed_experts": 64, "q_lora_rank": 768,
        "v_head_dim": 256, "qk_nope_head_dim": 192, "moe_intermediate_size": 1536}


@pytest.mark.parametrize("capability, fused, runner", [
    (75, False, "triton"), (80, True, "triton"), (100, True, "triton")])
def test_glm_flash_fuses_any_number_of_experts_and_has_no_pass(
    capability: int, fused: bool, runner: str
) -> None:
    found = layers(LITE, capability)
    assert ("mlp.shared_experts.down_proj" not in found) is fused
    assert found["mlp.experts"]["moe_runner_backend"] == runner


@pytest.mark.parametrize("config", [LITE, {**LITE, "quantization_config": BLOCK}])
def test_heads_that_ranks_do_not_divide_end_the_start_first(config: dict[str, Any]) -> None:
    """20 heads on 8 ranks: DeepseekV2AttentionMLA asserts it before any projection is made."""
    error = explain(config, engine="sglang", capability=90, tp=8).trace.error
    assert error is not None and (error.type, error.message) == ("AssertionError", "")


def test_sparse_attention_needs_deep_gemm_on_every_gpu() -> None:
    error = explain(V32, engine="sglang", capability=80, libs={"deep_gemm": False}).trace.error
    assert error is not None and (error.type, error.message) == (
        "ModuleNotFoundError", "No module named 'deep_gemm'")
