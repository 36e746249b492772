"""Kimi K2 to K3 under SGLang: what 0.5.22 itself answered to these configs."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain
from tests.dispatch.test_sglang_latent import INT4, NVFP4, V3, layers

KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
    "dtype": "bfloat16", "text_config": {**V3, "n_routed_experts": 384},
    "vision_config": {"vt_hidden_size": 1152, "vt_num_attention_heads": 16,
                      "vt_num_hidden_layers": 2, "text_hidden_size": 7168}}


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


@pytest.mark.parametrize("capability, told", [(90, True), (100, False)])
def test_weights_that_become_16_bit_are_told(capability: int, told: bool) -> None:
    found = explain(K3, engine="sglang", capability=capability).trace.findings
    assert ("mxfp4-upcast" in {finding.id for finding in found}) is told


def test_a_gate_of_low_rank_is_not_known() -> None:
    gate = {**K3_TEXT["linear_attn_config"], "use_full_rank_gate": False}
    config = {**K3, "text_config": {**K3_TEXT, "linear_attn_config": gate}}
    with pytest.raises(NotKnownError, match="KimiK3DeltaAttention"):
        explain(config, engine="sglang", capability=90)
