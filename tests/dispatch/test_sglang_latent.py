"""SGLang's model classes with latent attention: what 0.5.22 itself answered to these configs."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

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


V4: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 4096,
    "num_hidden_layers": 5, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "qk_rope_head_dim": 64,
    "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 2048,
    "compress_ratios": [0, 0, 4, 128, 4, 0], "num_hash_layers": 3, "swiglu_limit": 10.0,
    "hidden_act": "silu", "vocab_size": 129280, "torch_dtype": "bfloat16",
    "quantization_config": {**BLOCK, "scale_fmt": "ue8m0"}}
HYBRID = {**V4, "quantization_config": {
    **BLOCK, "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16,
    "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]}}


@pytest.mark.parametrize("capability, env, method, runner", [
    (80, {}, "Fp8MoEMethod", "triton"),
    (90, {}, "Mxfp4FlashinferCutlassMoEMethod", "flashinfer_mxfp4"),
    (100, {}, "Mxfp4FlashinferTrtllmMoEMethod", None),
    (110, {}, "Fp8MoEMethod", "triton"),
    (120, {}, "Mxfp4FlashinferCutlassMoEMethod", "flashinfer_mxfp4"),
    (100, {"SGLANG_DSV4_FP4_EXPERTS": "0"}, "Fp8MoEMethod", "triton"),
    (100, {"SGLANG_DSV4_FP4_DEQUANT": "1"}, "Fp8MoEMethod", "triton"),
])
def test_packed_experts_of_deepseek_v4(
    capability: int, env: dict[str, str], method: str, runner: str | None
) -> None:
    found = layers(V4, capability, env=env)["mlp.experts"]
    assert (found["method"], found["moe_runner_backend"]) == (method, runner)


@pytest.mark.parametrize("capability, env, method", [
    (89, {}, "UnquantizedLinearMethod"), (90, {}, "UnquantizedLinearMethod"),
    (100, {}, "Fp8LinearMethod"), (110, {}, "UnquantizedLinearMethod"),
    (100, {"SGLANG_OPT_FP8_WO_A_GEMM": "0"}, "UnquantizedLinearMethod"),
])
def test_where_deepseek_v4_keeps_wo_a_in_16_bits(
    capability: int, env: dict[str, str], method: str
) -> None:
    assert layers(V4, capability, env=env)["self_attn.wo_a"]["method"] == method


def test_wq_a_and_wkv_of_deepseek_v4_may_be_apart() -> None:
    names = [*layers(V4, 100, env={"SGLANG_OPT_FUSE_WQA_WKV": "0"})]
    assert "self_attn.wqkv_a" not in names
    assert {"self_attn.wq_a", "self_attn.wkv"} <= {*names}


def test_nvfp4_experts_beside_fp8() -> None:
    answer = explain(HYBRID, engine="sglang", capability=120).to_dict()
    experts = next(x for x in answer["layers"] if x["path"].endswith("mlp.experts"))
    assert answer["method"]["config_class"] == "HybridFp8NvFp4Config"
    assert (experts["method"], experts["moe_runner_backend"]) == (
        "ModelOptNvFp4FusedMoEMethod", "flashinfer_trtllm_routed")
    refused = explain(HYBRID, engine="sglang", capability=90).trace.error
    assert refused is not None and refused.message.startswith(
        "Current platform does not support NVFP4 quantization with the selected MoE backend.")


@pytest.mark.parametrize("asked, message", [
    ("bf16", "bf16 is not supported for DeepseekV4ForCausalLM"), ("bfloat16", None)])
def test_the_cache_of_deepseek_v4(asked: str, message: str | None) -> None:
    error = explain(V4, engine="sglang", capability=100, kv_cache_dtype=asked).trace.error
    assert (error and error.message) == message


def test_a_model_type_that_no_one_knows_is_refused_first() -> None:
    """The engine's answer to sgl-project/DeepSeek-V4-Pro-FP8, on GPUs that FP8 does not serve
    too."""
    error = explain({**V4, "model_type": "deepseek_ref"}, engine="sglang",
                    capability=75).trace.error
    assert error is not None and error.type == "ValueError"
    assert error.message.startswith("The checkpoint you are trying to load has model type "
                                    "`deepseek_ref` but Transformers does not recognize this")


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


def test_a_text_config_s_quantization_is_the_model_s() -> None:
    """configs/kimi_k25.py:KimiK25Config takes it where it has none."""
    config = {**KIMI, "text_config": {**KIMI["text_config"], "quantization_config": INT4}}
    found = layers(config, 90)
    assert found["language_model.mlp.experts"]["scheme"] == "CompressedTensorsWNA16MoE"
    assert found["language_model.self_attn.q_b_proj"]["method"] == "UnquantizedLinearMethod"


K3_TEXT: dict[str, Any] = {
    "model_type": "kimi_linear", "hidden_act": "situ", "hidden_size": 7168, "dtype": "bfloat16",
    "num_attention_heads": 96, "num_hidden_layers": 4, "intermediate_size": 33792,
    "moe_intermediate_size": 3072, "num_experts": 896, "num_experts_per_token": 16,
    "num_shared_experts": 2, "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
    "linear_attn_config": {"kda_layers": [1, 2, 3], "head_dim": 128, "num_heads": 96,
                           "short_conv_kernel_size": 4, "use_full_rank_gate": True},
    "mla_use_output_gate": True, "routed_expert_hidden_size": 3584, "attn_res_block_size": 2,
    "quantization_config": {
        "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*lm_head.*",
                   "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "format": "mxfp4-pack-quantized", "weights": {
                "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                "symmetric": True}}}}}
K3 = {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
      "dtype": "bfloat16", "text_config": K3_TEXT}


def test_the_modules_of_kimi_k3() -> None:
    names = {name.replace("language_model.", "") for name in layers(K3, 90)}
    assert names == {
        "model.embed_tokens", "model.output_attn_res_proj", "self_attn.fused_qkvg_proj",
        "self_attn.b_proj", "self_attn.f_a_proj", "self_attn.f_b_proj", "self_attn.qkv_conv1d",
        "self_attn.attn", "self_attn.o_proj", "self_attn.fused_qkv_a_proj_with_mqa",
        "self_attn.q_b_proj",
        "self_attn.kv_b_proj", "self_attn.attn_mqa", "self_attn.attn_mha", "self_attn.g_proj",
        "mlp.gate_up_proj", "mlp.down_proj", "mlp.experts", "mlp.shared_experts.gate_up_proj",
        "mlp.shared_experts.down_proj", "mlp.routed_expert_down_proj",
        "mlp.routed_expert_up_proj", "self_attention_res_proj", "mlp_res_proj", "lm_head"}


@pytest.mark.parametrize("capability, runner, mode", [
    (80, "triton", "W16A16"), (90, "triton", "W16A16"),
    (100, "flashinfer_mxfp4", "W4A8_mxfp8"), (120, "triton", "W16A16")])
def test_mxfp4_experts_of_kimi_k3(capability: int, runner: str, mode: str) -> None:
    """They have Mxfp4Config's method: without a runner for MXFP4 weights become 16-bit while
    loading."""
    found = layers(K3, capability)["language_model.mlp.experts"]
    assert (found["method"], found["moe_runner_backend"], found["experts"]["mode"]) == (
        "Mxfp4MoEMethod", runner, mode)


def test_a_gate_of_low_rank_is_not_known() -> None:
    gate = {**K3_TEXT["linear_attn_config"], "use_full_rank_gate": False}
    config = {**K3, "text_config": {**K3_TEXT, "linear_attn_config": gate}}
    with pytest.raises(NotKnownError, match="KimiK3DeltaAttention"):
        explain(config, engine="sglang", capability=90)


@pytest.mark.parametrize("config", [LITE, {**LITE, "quantization_config": BLOCK}])
def test_heads_that_ranks_do_not_divide_end_the_start_first(config: dict[str, Any]) -> None:
    """20 heads on 8 ranks: DeepseekV2AttentionMLA asserts it before any projection is made."""
    error = explain(config, engine="sglang", capability=90, tp=8).trace.error
    assert error is not None and (error.type, error.message) == ("AssertionError", "")


def test_sparse_attention_needs_deep_gemm_on_every_gpu() -> None:
    error = explain(V32, engine="sglang", capability=80, libs={"deep_gemm": False}).trace.error
    assert error is not None and (error.type, error.message) == (
        "ModuleNotFoundError", "No module named 'deep_gemm'")
    with pytest.raises(NotKnownError, match="DeepseekV4ForCausalLM without DeepGEMM"):
        explain(V4, engine="sglang", capability=80, libs={"deep_gemm": False})
