"""Runners of routed experts that are asked for by name: what SGLang 0.5.22 itself answered, and
0.5.23 where it says so."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain

QWEN: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 1,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": []}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 2, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "vocab_size": 201088, "hidden_act": "silu", "sliding_window": 128, "torch_dtype": "bfloat16",
    "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False,
    "max_position_embeddings": 131072}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 1, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "max_position_embeddings": 8192}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
STATIC = {**FP8, "activation_scheme": "static"}
BLOCK = {**FP8, "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}
MXFP4 = {"quant_method": "mxfp4",
         "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def ask(
    model: dict[str, Any], quantized: dict[str, Any] | None, capability: int, backend: str,
    version: str = "0.5.22", **options: Any,
) -> dict[str, Any]:
    config = model if quantized is None else {**model, "quantization_config": quantized}
    return explain(config, engine="sglang", engine_version=version, capability=capability,
                   moe_backend=backend, **options).to_dict()


def experts(found: dict[str, Any]) -> dict[str, Any]:
    assert found["error"] is None
    return next(layer for layer in found["layers"] if layer["path"].endswith("mlp.experts"))


@pytest.mark.parametrize("model, quantized, capability, backend, runner", [
    (QWEN, None, 90, "experimental_sgl_trtllm", "flashinfer_trtllm"),
    (QWEN, None, 90, "experimental_sgl_marlin", "triton"),
    (QWEN, None, 75, "flashinfer_mxfp4", "triton"),
    (QWEN, None, 120, "flashinfer_megamoe", "triton"),
    (QWEN, None, 100, "aiter", "triton"),
    (QWEN, None, 80, "intel_xpu", "triton"),
    (QWEN, None, 100, "megamoe", "triton"),
    (QWEN, FP8, 90, "megamoe", "triton"),
    (QWEN, BLOCK, 90, "hpc_ops", "hpc_ops"),
    (QWEN, STATIC, 90, "hpc_ops", "hpc_ops"),
    (QWEN, FP8, 90, "aiter", "aiter"),
    (QWEN, FP8, 90, "intel_xpu", None),
    (QWEN, FP8, 90, "flashinfer_mxfp4", None),
    (QWEN, FP8, 80, "experimental_sgl_marlin", None),
    (QWEN, NVFP4, 90, "experimental_sgl_marlin", "experimental_sgl_marlin"),
    (QWEN, NVFP4, 100, "aiter", "aiter"),
    (QWEN, NVFP4, 120, "flashinfer_mxfp4", "flashinfer_mxfp4"),
    (GPT_OSS, MXFP4, 90, "experimental_sgl_marlin", "experimental_sgl_marlin"),
    (GPT_OSS, MXFP4, 90, "aiter", "aiter"),
    (GPT_OSS, None, 100, "megamoe", "triton_kernel"),
])
def test_the_runner_that_is_made(
    model: dict[str, Any], quantized: dict[str, Any] | None, capability: int, backend: str,
    runner: str | None,
) -> None:
    assert experts(ask(model, quantized, capability, backend))["moe_runner_backend"] == runner


UNREGISTERED = ("NotImplementedError", "Runner backend MoeRunnerBackend.{} requires a fused func "
                "for a2a backend {}, but none is registered.")
HOPPER = ("ValueError", "--moe-runner-backend hpc_ops requires an SM90 (Hopper) GPU (the HPC-Ops "
          "kernels ship sm90a only), got sm{}.")
ONLY_FP8 = ("ValueError", "--moe-runner-backend hpc_ops only supports Fp8MoEMethod (FP8 blockwise "
            "or per-tensor MoE), but this layer selected {}. Remove --moe-runner-backend hpc_ops "
            "for this model.")
NO_RUNNER = ("NotImplementedError", "Mxfp4MoEMethod has no MoeRunner for "
             "backend=MoeRunnerBackend.{} / _fi_kernel=None.")


@pytest.mark.parametrize("asked, error, words", [
    ((QWEN, FP8, 90, "experimental_sgl_trtllm"), UNREGISTERED, ("EXPERIMENTAL_SGL_TRTLLM", "none")),
    ((QWEN, NVFP4, 100, "experimental_sgl_trtllm"), UNREGISTERED,
     ("EXPERIMENTAL_SGL_TRTLLM", "none")),
    ((QWEN, BLOCK, 120, "flashinfer_megamoe"), UNREGISTERED, ("FLASHINFER_MEGAMOE", "none")),
    ((QWEN, AWQ, 90, "megamoe"), UNREGISTERED, ("MARLIN", "megamoe")),
    ((QWEN, FP8, 80, "hpc_ops"), HOPPER, ("80",)),
    ((QWEN, BLOCK, 100, "hpc_ops"), HOPPER, ("100",)),
    ((QWEN, None, 90, "hpc_ops"), ONLY_FP8, ("UnquantizedFusedMoEMethod",)),
    ((QWEN, AWQ, 80, "hpc_ops"), ONLY_FP8, ("AWQMoEMethod",)),
    ((GPT_OSS, MXFP4, 120, "hpc_ops"), ONLY_FP8, ("Mxfp4MoEMethod",)),
    ((GPT_OSS, MXFP4, 90, "experimental_sgl_trtllm"), NO_RUNNER, ("EXPERIMENTAL_SGL_TRTLLM",)),
    ((QWEN, NVFP4, 100, "intel_xpu"), ("NotImplementedError", "Unsupported runner backend: "
                                     "MoeRunnerBackend.INTEL_XPU"), ()),
    ((QWEN, FP8, 90, "hpc_ops"), (
        "ValueError", "The hpc_ops MoE runner backend requires static activation scales for "
        "per-tensor FP8 models (activation_scheme='static' in the checkpoint quantization "
        "config)."), ()),
    ((GPT_OSS, MXFP4, 80, "experimental_sgl_marlin"),
     ("RuntimeError", "MXFP4 Marlin requires SM90+."), ()),
])
def test_the_words_of_the_refusal(
    asked: tuple[Any, ...], error: tuple[str, str], words: tuple[str, ...]
) -> None:
    found = ask(*asked)["error"]
    assert (found["type"], found["message"]) == (error[0], error[1].format(*words))


@pytest.mark.parametrize("model", [QWEN, LLAMA], ids=["experts", "dense"])
@pytest.mark.parametrize("capability", [75, 80, 89, 110, 120])
def test_megamoe_is_refused_on_other_gpus(model: dict[str, Any], capability: int) -> None:
    found = ask(model, None, capability, "megamoe")["error"]
    assert (found["type"], found["message"]) == (
        "ValueError", "--moe-a2a-backend megamoe needs a CUDA SM90 GPU (block-FP8 experts) or an "
        "SM100-class GPU (MXFP4 / NVFP4 experts); it runs DeepGEMM kernels over CUDA symmetric "
        "memory. On ROCm, set SGLANG_AMD_USE_FLYDSL_MEGA_MOE=1 to select aiter MegaMoEv2 instead.")


def test_what_megamoe_repacks_is_not_known() -> None:
    with pytest.raises(NotKnownError, match="Fp8MoEMethod with --moe-backend megamoe"):
        ask(QWEN, BLOCK, 90, "megamoe")


@pytest.mark.parametrize("backend", ["megamoe", "hpc_ops", "aiter", "intel_xpu"])
def test_dense_models_start_with_any_runner(backend: str) -> None:
    assert ask(LLAMA, None, 90, backend)["outcome"] == "ok"


@pytest.mark.parametrize("model", [QWEN, LLAMA], ids=["experts", "dense"])
@pytest.mark.parametrize("backend", ["lora_cutedsl", "lora_triton", "lora_marlin"])
def test_runners_for_adapters_need_adapters(model: dict[str, Any], backend: str) -> None:
    """SGLang 0.5.23: arg_groups/lora_hook.py:check_lora_moe_runner_args."""
    found = ask(model, None, 90, backend, version="0.5.23")["error"]
    assert (found["type"], found["message"]) == (
        "ValueError", f"--moe-runner-backend {backend} requires --enable-lora (or --lora-paths)")


@pytest.mark.parametrize("asked, words", [
    ({}, "No module named 'hpc'"), ({"libs": {"hpc": True}}, None)])
def test_hpc_ops_needs_its_package_in_the_first_forward(
    asked: dict[str, Any], words: str | None
) -> None:
    """layers/moe/moe_runner/hpc_ops.py imports it there."""
    found = ask(QWEN, BLOCK, 90, "hpc_ops", **asked)["findings"]
    told = [row["message"] for row in found if row["stage"] == "first forward"]
    assert all(words and words in message for message in told)
    assert bool(told) == bool(words)


def test_the_experimental_trtllm_runner_is_there_with_its_variable() -> None:
    """layers/moe/moe_runner/flashinfer_trtllm.py registers it under the variable alone."""
    found = ask(QWEN, BLOCK, 100, "experimental_sgl_trtllm",
                env={"SGLANG_EXPERIMENTAL_LORA_OPTI": "1"})
    assert experts(found)["moe_runner_backend"] == "experimental_sgl_trtllm"
