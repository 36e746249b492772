"""What `quantplan verify --engine sglang` found: answers of SGLang 0.5.22 to generated cases."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import explain

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120,
    "intermediate_size": 25600, "num_hidden_layers": 2, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "quantization_config": FP8}
LLAMA = {**QWEN3, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def ask(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    return explain(config, engine="sglang", engine_version="0.5.22", capability=90,
                   **options).to_dict()


@pytest.mark.parametrize("config, method", [(QWEN3, None), (LLAMA, "Fp8KVCacheMethod")])
def test_qwen3_tells_its_attention_nothing_of_the_quantization(
    config: dict[str, Any], method: str | None
) -> None:
    """models/qwen3.py:Qwen3Attention makes its RadixAttention without a quant_config."""
    layers = {layer["path"]: layer for layer in ask(config)["layers"]}
    assert layers["model.layers.*.self_attn.attn"]["method"] == method


@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
@pytest.mark.parametrize("named", ["gelu", "relu2"])
def test_other_activations_are_refused_once_the_mlp_is_built(
    config: dict[str, Any], named: str
) -> None:
    error = ask({**config, "hidden_act": named})["error"]
    assert (error["type"], error["message"]) == (
        "ValueError", f"Unsupported activation: {named}. Only silu is supported for now.")


def test_what_refuses_an_earlier_layer_comes_first() -> None:
    found = ask({**QWEN3, "hidden_act": "gelu", "num_key_value_heads": 3}, tp=2)["error"]
    assert found["type"] == "AssertionError"


MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 9728,
    "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 49152, "num_hidden_layers": 2,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "head_dim": 96}
QKV = "model.layers.*.self_attn.qkv_proj"


def row(found: dict[str, Any], path: str) -> dict[str, Any]:
    layers: dict[str, dict[str, Any]] = {layer["path"]: layer for layer in found["layers"]}
    return layers[path]


def test_mixtral_divides_its_size_by_its_heads_whatever_head_dim_says() -> None:
    """models/mixtral.py:MixtralAttention."""
    assert row(ask(MIXTRAL, tp=2), QKV)["n"] == 3072


@pytest.mark.parametrize("ignored, method", [
    ("layers.0.self_attn.o_proj", "UnquantizedLinearMethod"),
    ("model.layers.0.self_attn.o_proj", "CompressedTensorsLinearMethod")])
def test_mixtral_s_layers_are_known_without_their_model(ignored: str, method: str) -> None:
    """models/mixtral.py:MixtralModel makes them with the prefix layers; names of a
    compressed-tensors config are compared with these."""
    quant = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": [ignored],
             "config_groups": {"group_0": {
                 "targets": ["Linear"],
                 "weights": {"num_bits": 8, "type": "float", "strategy": "channel",
                             "symmetric": True, "dynamic": False},
                 "input_activations": {"num_bits": 8, "type": "float", "strategy": "token",
                                       "symmetric": True, "dynamic": True}}}}
    found = ask({**MIXTRAL, "quantization_config": quant})
    methods = {index: layer["method"] for layer in found["layers"] for index in layer["indices"]
               if layer["path"] == "model.layers.*.self_attn.o_proj"}
    assert methods == {0: method, 1: "CompressedTensorsLinearMethod"}


def test_flashinfer_s_deepgemm_quantizes_activations_itself() -> None:
    block = {**FP8, "weight_block_size": [128, 128]}
    found = ask({**LLAMA, "quantization_config": block}, fp8_gemm_backend="flashinfer_deepgemm")
    layer = row(found, QKV)
    assert (layer["kernel"], layer["act"]) == ("fp8_blockscale_gemm_sm90", "group_in_kernel")


HY_V3: dict[str, Any] = {
    "architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "hidden_size": 2048,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 50304, "head_dim": 128,
    "num_hidden_layers": 2, "intermediate_size": 6144, "expert_hidden_dim": 1024,
    "num_experts": 64, "num_experts_per_tok": 8, "num_shared_experts": 1,
    "first_k_dense_replace": 1, "route_norm": True, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "tie_word_embeddings": False}
SHARED = "model.layers.*.mlp.shared_mlp.gate_up_proj"


@pytest.mark.parametrize("given, n", [({}, 3072), ({"moe_intermediate_size": 2048}, 4096)])
def test_hunyuan_v3_reads_moe_intermediate_size_only(given: dict[str, int], n: int) -> None:
    """models/hunyuan_v3.py:HYV3MoEFused; the default is Transformers'."""
    assert row(ask({**HY_V3, **given}), SHARED)["n"] == n


GLM_LITE: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
    "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2,
    "num_attention_heads": 16, "vocab_size": 32000, "first_k_dense_replace": 1,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False}


@pytest.mark.parametrize("tp, built", [(1, False), (2, True)])
def test_whole_experts_of_one_rank_are_no_expert_parallelism(tp: int, built: bool) -> None:
    """Shared experts, one by Transformers' default, are among the routed ones on a single rank."""
    paths = {layer["path"] for layer in ask(GLM_LITE, tp=tp, enable_expert_parallel=True)["layers"]}
    assert ("model.layers.*.mlp.shared_experts.gate_up_proj" in paths) is built


def test_latent_attention_models_tell_their_embedding_nothing_of_the_quantization() -> None:
    """models/glm4_moe_lite.py:Glm4MoeLiteModel: the first dense layer ends the start of MXFP4."""
    config = {**GLM_LITE, "quantization_config": {"quant_method": "mxfp4"}}
    assert ask(config)["error"]["type"] == "AssertionError"


FALCON_MAMBA: dict[str, Any] = {
    "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba",
    "hidden_size": 4096, "vocab_size": 65024, "num_hidden_layers": 2, "state_size": 16,
    "expand": 2, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True,
    "time_step_rank": 256, "intermediate_size": 8192, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "tie_word_embeddings": False}


def test_a_mamba1_mixer_names_the_size_that_ranks_do_not_divide() -> None:
    error = ask(FALCON_MAMBA, tp=3)["error"]
    assert error["message"] == "Mamba-1 intermediate_size (8192) must be divisible by tp_size (3)"


LFM2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 2880,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32001,
    "num_hidden_layers": 2, "intermediate_size": 12288, "conv_L_cache": 3, "conv_bias": False,
    "block_ff_dim": 12288, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True, "full_attn_idxs": [1], "conv_dim": 2048,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False}


def test_lfm2_s_convolutions_have_the_hidden_size_whatever_conv_dim_says() -> None:
    """models/lfm2.py:Lfm2ShortConv."""
    layer = row(ask(LFM2), "model.layers.*.conv.in_proj")
    assert (layer["n"], layer["k"]) == (8640, 2880)


QWEN35: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 5120,
    "intermediate_size": 17408, "num_hidden_layers": 4, "num_attention_heads": 24,
    "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "hidden_act": "silu",
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_value_head_dim": 128, "attn_output_gate": True,
    "full_attention_interval": 4, "torch_dtype": "bfloat16", "tie_word_embeddings": False}


def test_qwen35_s_gates_do_not_count_as_heads_that_ranks_divide() -> None:
    """models/qwen3_5.py:Qwen3_5AttentionDecoderLayer: 24 heads and their gates on 16 ranks."""
    error = ask(QWEN35, tp=16)["error"]
    assert (error["type"], error["message"], error["layer"]) == (
        "AssertionError", "", "model.layers.3.qkv_proj")


def test_an_error_after_loading_names_the_module_and_not_its_prefix() -> None:
    """HYV3's prefixes begin with a dot, its modules do not."""
    config = {**HY_V3, "quantization_config": {
        "quant_method": "modelopt", "quant_algo": "MXFP8", "kv_cache_quant_algo": None}}
    found = explain(config, engine="sglang", engine_version="0.5.22", capability=110).to_dict()
    assert found["error"]["layer"] == "model.layers.1.mlp.experts"


def test_llama_s_config_class_asks_that_heads_divide_the_hidden_size() -> None:
    error = ask({**LLAMA, "num_attention_heads": 24, "hidden_size": 4096})["error"]
    assert error["message"].endswith(
        "The hidden size (4096) is not a multiple of the number of attention heads (24).")


@pytest.mark.parametrize("config, path", [
    (({**QWEN3, "architectures": ["StableLmForCausalLM"], "model_type": "stablelm",
       "hidden_size": 2048, "num_attention_heads": 16, "head_dim": 80}), QKV),
    (({**QWEN3, "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2",
       "hidden_size": 2048, "num_attention_heads": 16, "head_dim": 80}), QKV)])
def test_classes_that_divide_whatever_head_dim_says(config: dict[str, Any], path: str) -> None:
    """models/stablelm.py:StablelmAttention, models/commandr.py:CohereAttention."""
    assert row(ask({**config, "quantization_config": None}), path)["n"] == 4096


DEEPSEEK_V4: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 4096,
    "num_hidden_layers": 1, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "vocab_size": 129280, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "sliding_window": 128, "expert_dtype": "fp4", "hc_eps": 1e-06,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "index_head_dim": 128, "index_n_heads": 64,
    "index_topk": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 6, "num_hash_layers": 1,
    "o_groups": 8, "o_lora_rank": 1024, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "compress_ratios": [128],
    "quantization_config": {**FP8, "weight_block_size": [128, 128]}}


@pytest.mark.parametrize("capability, env, told", [
    (120, {}, True), (120, {"SGLANG_OPT_FP8_WO_A_GEMM": "1"}, False), (100, {}, False)])
def test_wo_a_on_120_is_what_the_class_says_and_a_finding_says_what_the_server_does(
    capability: int, env: dict[str, str], told: bool
) -> None:
    found = explain(DEEPSEEK_V4, engine="sglang", engine_version="0.5.22", capability=capability,
                    env=env).to_dict()
    layer = row(found, "model.layers.*.self_attn.wo_a")
    assert (layer["method"], "server-sets-otherwise" in layer["findings"]) == (
        "Fp8LinearMethod", told)


def test_deepseek_v4_has_one_key_head() -> None:
    error = ask({**DEEPSEEK_V4, "num_key_value_heads": 4})["error"]
    assert (error["type"], error["message"]) == ("AssertionError", "")
