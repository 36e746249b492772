"""DeepSeek V4 under SGLang: what 0.5.22 itself answered to these configs."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain
from tests.dispatch.test_sglang_latent import BLOCK, layers

V4: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 4096,
    "sliding_window": 128,
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


def test_deepseek_v4_without_deep_gemm_is_not_known() -> None:
    """Its class is not imported then, and the engine looks for one of Transformers'."""
    with pytest.raises(NotKnownError, match="DeepseekV4ForCausalLM without DeepGEMM"):
        explain(V4, engine="sglang", capability=80, libs={"deep_gemm": False})
