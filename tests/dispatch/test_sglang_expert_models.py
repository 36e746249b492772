"""MiniMax-M2, Nemotron-H and gpt-oss on SGLang: answers that the engine, both versions, gave for
the real folders of these models cut to a few layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from quantplan import explain

NEMOTRON: Mapping[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 2688,
    "hybrid_override_pattern": "ME*", "num_hidden_layers": 3, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 1856, "vocab_size": 131072,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
    "conv_kernel": 4, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "mlp_hidden_act": "relu2", "torch_dtype": "bfloat16", "tie_word_embeddings": False}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
         "ignore": ["lm_head", "backbone.layers.2*"]}
FP8 = {"quant_method": "modelopt", "quant_algo": "FP8"}
MINIMAX: Mapping[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": 3072,
    "intermediate_size": 1536, "num_hidden_layers": 1, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8,
    "vocab_size": 200064, "torch_dtype": "bfloat16", "hidden_act": "silu"}
GPT_OSS: Mapping[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 2, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "vocab_size": 201088, "torch_dtype": "bfloat16", "hidden_act": "silu", "sliding_window": 128}
MXFP4 = {"quant_method": "mxfp4"}


def ask(
    model: Mapping[str, Any], quantized: Mapping[str, Any] | None, capability: int, **options: Any
) -> dict[str, Any]:
    """Return the answer to the model with this quantization_config."""
    config = {**model, **({"quantization_config": quantized} if quantized else {})}
    return explain(config, engine="sglang", capability=capability,
                   **{"engine_version": "0.5.22", **options}).to_dict()


def experts(answer: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return method and runner of the routed experts."""
    layer = next(x for x in answer["layers"] if x["path"].endswith(".experts"))
    return layer["method"], layer["moe_runner_backend"]


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
@pytest.mark.parametrize("model, config, found", [
    (NEMOTRON, None, {75: "flashinfer_cutlass", 90: "flashinfer_cutlass",
                      100: "flashinfer_trtllm", 120: "flashinfer_cutlass"}),
    (NEMOTRON, NVFP4, {80: "marlin", 90: "marlin", 100: "flashinfer_trtllm",
                       120: "flashinfer_cutlass"}),
    (NEMOTRON, FP8, {89: "flashinfer_cutlass", 90: "flashinfer_cutlass", 100: "triton",
                     120: "flashinfer_cutlass"}),
    (MINIMAX, NVFP4, {80: "marlin", 100: "flashinfer_trtllm_routed", 120: "flashinfer_trtllm"}),
    (GPT_OSS, MXFP4, {80: "triton_kernel", 90: "triton_kernel", 100: "flashinfer_mxfp4",
                      120: "flashinfer_mxfp4"}),
    (GPT_OSS, None, {89: "triton_kernel", 100: "triton_kernel"}),
])
def test_runners(version: str, model: Any, config: Any, found: dict[int, str]) -> None:
    answers = {capability: experts(ask(model, config, capability, engine_version=version))[1]
               for capability in found}
    assert answers == found


def test_names_of_the_checkpoint_are_the_engines() -> None:
    """hf_to_sglang_mapper: backbone. is model.; the attention layer is left alone, and the
    embedding, the router and the convolution never have a method."""
    kinds = {x["path"].removeprefix("model.layers.*.mixer."): x["method"]
             for x in ask(NEMOTRON, NVFP4, 90)["layers"] if x["method"]}
    assert kinds == {
        "model.embed_tokens": "UnquantizedEmbeddingMethod", "conv1d": "UnquantizedLinearMethod",
        "in_proj": "ModelOptFp4LinearMethod", "out_proj": "ModelOptFp4LinearMethod",
        "gate": "UnquantizedLinearMethod", "experts": "ModelOptNvFp4FusedMoEMethod",
        "shared_experts.up_proj": "ModelOptFp4LinearMethod",
        "shared_experts.down_proj": "ModelOptFp4LinearMethod",
        "qkv_proj": "UnquantizedLinearMethod", "o_proj": "UnquantizedLinearMethod",
        "attn": "ModelOptFp8KVCacheMethod", "lm_head": "UnquantizedLinearMethod"}


def test_a_mixed_checkpoint_has_to_say_so_in_config_json() -> None:
    """Nemotron-3.5-Lightning: the server reads hf_config.quantization_config itself."""
    side = {"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "backbone.layers.1.mixer.experts.0.up_proj": {"quant_algo": "NVFP4"}}}}
    error = ask(NEMOTRON, None, 90, side_files={"hf_quant_config.json": side})["error"]
    assert (error["type"], error["message"]) == (
        "AttributeError", "'NemotronHConfig' object has no attribute 'quantization_config'")


def test_gpt_oss_runs_in_bfloat16() -> None:
    """The pass sets the dtype of MXFP4 checkpoints; attention has no quantization method."""
    answer = ask(GPT_OSS, MXFP4, 90, dtype="float16")
    methods = {x["path"].rsplit(".", 1)[-1]: (x["module"], x["method"]) for x in answer["layers"]}
    assert answer["kv_cache"]["resolved"] == "bfloat16"
    assert methods["qkv_proj"] == ("QKVParallelLinear", "UnquantizedLinearMethod")
    assert methods["router"] == ("TinyGemmLinear", "UnquantizedLinearMethod")


def test_gpt_oss_is_refused_on_7_5() -> None:
    assert ask(GPT_OSS, MXFP4, 75)["error"]["message"] == (
        "The quantization method mxfp4 is not supported for the current GPU. Minimum capability: "
        "80. Current capability: 75.")


def test_blocks_that_do_not_divide_the_experts() -> None:
    """MiniMax-M2.5 over 8 ranks."""
    block = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    assert ask(MINIMAX, block, 90, tp=8)["error"]["message"] == (
        "The output_size of gate's and up's weight = 192 is not divisible by weight quantization "
        "block_n = 128.")


MINIMAX_M3: Mapping[str, Any] = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
    "projector_hidden_size": 6144, "img_token_compression_config": {"spatial_merge_size": 2},
    "torch_dtype": "bfloat16",
    "text_config": {
        "dense_intermediate_size": 12288, "dtype": "bfloat16", "head_dim": 128,
        "hidden_size": 6144, "intermediate_size": 3072, "moe_layer_freq": [0, 1],
        "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 4, "num_local_experts": 128,
        "vocab_size": 200064, "tie_word_embeddings": False, "sparse_attention_config": {
            "sparse_attention_freq": [0, 1], "sparse_disable_index_value": [0, 1],
            "sparse_block_size": 128, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16}},
    "vision_config": {
        "hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 16,
        "num_hidden_layers": 1, "img_token_compression_config": {"spatial_merge_size": 2}}}
M3_LAYERS = {
    **{f"language_model.model.layers.{layer}.self_attn.{name}_proj": "MXFP8"
       for layer in (0, 1) for name in ("q", "k", "v", "o", "index_q", "index_k")},
    "language_model.model.layers.0.mlp.down_proj": "MXFP8",
    "language_model.model.layers.1.block_sparse_moe.experts.0.w1": "NVFP4",
    "language_model.model.layers.1.block_sparse_moe.shared_experts.down_proj": "MXFP8"}
M3_MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": None, "exclude_modules": ["lm_head", "vision_tower"],
            "quantized_layers": {name: {"quant_algo": algo} for name, algo in M3_LAYERS.items()}}


@pytest.mark.parametrize("capability, kernel, runner", [
    (80, "apply_fp8_marlin_linear", "marlin"), (90, "w8a8_mxfp8_matmul_deepgemm", "marlin"),
    (100, "flashinfer_mxfp8_blockscaled_linear", "flashinfer_trtllm_routed"),
    (120, "flashinfer_mxfp8_blockscaled_linear", "flashinfer_trtllm")])
def test_minimax_m3(capability: int, kernel: str, runner: str) -> None:
    """The names of its config are those of the checkpoint and begin with language_model."""
    answer = ask(MINIMAX_M3, M3_MIXED, capability)
    kernels = {x["path"]: x.get("kernel") for x in answer["layers"]}
    text = "model.layers.*."
    assert experts(answer) == ("ModelOptNvFp4FusedMoEMethod", runner)
    assert [kernels[text + name] for name in (
        "self_attn.index_qkv_proj", "mlp.down_proj", "mlp.shared_experts.down_proj",
        "mlp.gate")] == [kernel, kernel, kernel, "torch.mm"]


@pytest.mark.parametrize("tp, features", [(1, 640), (4, 256), (8, 256)])
def test_index_heads_are_cut_over_as_many_ranks(tp: int, features: int) -> None:
    """models/minimax_m3.py:MiniMaxM3Attention: groups of ranks hold the same index head."""
    layer = next(x for x in ask(MINIMAX_M3, M3_MIXED, 90, tp=tp)["layers"]
                 if x["path"].endswith("index_qkv_proj"))
    assert layer["n"] == features


@pytest.mark.parametrize("options, runner", [
    ({"tp": 4, "enable_expert_parallel": True}, "triton"), ({"quantization": "mxfp4"}, "triton"),
    ({"moe_backend": "triton"}, "triton"), ({"moe_backend": "marlin"}, "marlin")])
def test_mxfp4_without_triton_kernels(options: dict[str, Any], runner: str) -> None:
    """The pass chooses triton_kernels only without --quantization and expert parallel ranks; auto
    makes weights 16-bit while loading."""
    assert experts(ask(GPT_OSS, MXFP4, 90, **options)) == ("Mxfp4MoEMethod", runner)


@pytest.mark.parametrize("backend", ["cutlass", "flashinfer_cutlass"])
def test_backends_that_mxfp4_has_no_runner_for(backend: str) -> None:
    error = ask(GPT_OSS, MXFP4, 90, moe_backend=backend)["error"]
    assert (error["type"], error["message"]) == (
        "NotImplementedError", "Mxfp4MoEMethod has no MoeRunner for "
        f"backend=MoeRunnerBackend.{backend.upper()} / _fi_kernel=None.")


@pytest.mark.parametrize("tp, message", [
    (3, "4864 is not divisible by 3"),
    (16, "If tensor parallel world size does not divide num_groups, then num_groups must equal 1.")
])
def test_ranks_that_do_not_divide_a_mamba_mixer(tp: int, message: str) -> None:
    """The cache first (configs/mamba_utils.py:Mamba2StateShape), then the mixer's groups."""
    error = ask({**NEMOTRON, "num_attention_heads": 48, "num_key_value_heads": 48}, None, 90,
                tp=tp)["error"]
    assert (error["type"], error["message"]) == ("AssertionError", message)


@pytest.mark.parametrize("capability", [100, 103])
def test_minimax_m3_in_mxfp8(capability: int) -> None:
    """Shared experts are among the routed ones there, and the index projections MXFP8 too."""
    answer = ask(MINIMAX_M3, {"quant_method": "mxfp8", "activation_scheme": "dynamic",
                              "modules_to_not_convert": ["lm_head"]}, capability)
    methods = {layer["path"]: layer["method"] for layer in answer["layers"]}
    assert experts(answer) == ("Fp8MoEMethod", "deep_gemm")
    assert "model.layers.*.mlp.shared_experts.down_proj" not in methods
    assert methods["model.layers.*.self_attn.index_qkv_proj"] == "Fp8LinearMethod"


GLM: Mapping[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 4096,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
    "num_hidden_layers": 2, "vocab_size": 151552, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "tie_word_embeddings": False}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


@pytest.mark.parametrize("capability, apart", [(75, True), (80, False), (90, False), (100, True)])
def test_shared_experts_of_glm(capability: int, apart: bool) -> None:
    """Among the routed ones from 8.0 on, but for FlashInfer TRTLLM, which the pass chooses on
    10.x."""
    paths = {layer["path"] for layer in ask(GLM, None, capability)["layers"]}
    assert ("model.layers.*.mlp.shared_experts.down_proj" in paths) == apart


def test_the_class_reads_the_weight_of_shared_experts() -> None:
    """models/glm4_moe.py:Glm4MoeSparseMoeBlock: Marlin's packed layers have none."""
    error = ask(GLM, GPTQ, 90, tp=2, enable_expert_parallel=True)["error"]
    assert (error["type"], error["message"]) == (
        "AttributeError", "'MergedColumnParallelLinear' object has no attribute 'weight'")
    assert ask(GLM, GPTQ, 90, tp=2)["error"] is None
