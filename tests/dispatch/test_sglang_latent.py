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
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
    "dtype": "bfloat16", "text_config": {**V3, "n_routed_experts": 384},
    "vision_config": {"vt_hidden_size": 1152, "vt_num_attention_heads": 16,
                      "vt_num_hidden_layers": 2, "text_hidden_size": 7168}}
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


@pytest.mark.parametrize("capability, scheme, runner", [
    (90, "CompressedTensorsWNA16MoE", "marlin"), (100, "CompressedTensorsMxInt4MoE", None)])
def test_kimi_of_four_bits(capability: int, scheme: str, runner: str | None) -> None:
    found = layers({**V3, "n_routed_experts": 384, "quantization_config": INT4}, capability,
                   engine_version="0.5.22")
    experts = found["mlp.experts"]
    assert (experts["scheme"], experts["moe_runner_backend"]) == (scheme, runner)


def test_kimi_with_vision_names_its_language_model_without_the_wrapper() -> None:
    """KimiK25ForConditionalGeneration builds DeepseekV3ForCausalLM with an empty prefix, and the
    names of the checkpoint are made to fit (ModelOptQuantConfig.apply_weight_name_mapper)."""
    ignored = ["language_model.model.layers.0*", "language_model.lm_head", "vision_tower*"]
    config = {**KIMI, "quantization_config": {**NVFP4, "ignore": ignored}}
    answer = explain(config, engine="sglang", capability=90).to_dict()
    found = {layer["path"]: layer["method"] for layer in answer["layers"]}
    assert found["vision_tower.encoder.blocks.*.attn.qkv_proj"] == "UnquantizedLinearMethod"
    assert found["mm_projector.linear_2"] == "UnquantizedLinearMethod"
    assert found["language_model.lm_head"] == "UnquantizedLinearMethod"
    assert found["language_model.model.layers.*.mlp.experts"] == "ModelOptNvFp4FusedMoEMethod"
