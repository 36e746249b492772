"""What to do instead, beside the engine's own words of a refusal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, quantization, scheme

KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


@pytest.mark.parametrize("quant, options, hint", [
    (None, {"attention_backend": "FLASHMLA"}, "Drop --attention-backend FLASHMLA: "),
    (None, {"attention_backend": "NOPE"}, "Give one of these, or auto."),
    (None, {"kv_cache_dtype": "fp8_ds_mla"}, "Drop --kv-cache-dtype fp8_ds_mla."),
    ({**FP8, "activation_scheme": "foo"}, {}, "activation_scheme is static or dynamic."),
    ({**FP8, "weight_block_size": [128]}, {}, "weight_block_size is [rows, columns]"),
    ({**FP8, "activation_scheme": "static", "weight_block_size": [128, 128]}, {},
     "Block scales go with activation_scheme dynamic"),
    ({"quant_method": "fp8"}, {}, "Add activation_scheme to the quantization config"),
    ({"quant_method": "modelopt", "quant_algo": "INT8_SQ"}, {}, "Export the checkpoint with one"),
    (scheme("ct-fp8-dynamic", kv_cache_scheme=None) | {"kv_cache_scheme": {**KV, "num_bits": 4}},
     {}, "Remove kv_cache_scheme from the quantization config"),
    (quantization("gptq4-g128"), {"env": {"VLLM_MARLIN_INPUT_DTYPE": "fp8"}},
     "Set VLLM_MARLIN_INPUT_DTYPE=int8, or unset it."),
])
def test_a_refusal_says_what_to_do(quant: Any, options: dict[str, Any], hint: str) -> None:
    error = ask(quant, **options).trace.error
    assert error is not None
    assert str(error.hint).startswith(hint)


@pytest.mark.parametrize("model_type, architecture, capability, dtype, hint", [
    ("gemma2", "Gemma2ForCausalLM", "9.0", "float16", "Pass --dtype bfloat16."),
    ("gemma2", "Gemma2ForCausalLM", "7.5", "float16", "Pass --dtype float32."),
    ("gemma2", "Gemma2ForCausalLM", "7.5", "bfloat16", "Pass --dtype float32."),
    ("llama", "LlamaForCausalLM", "7.5", "bfloat16", "Pass --dtype float16.")])
def test_a_dtype_that_the_gpu_and_the_model_take(
    model_type: str, architecture: str, capability: str, dtype: str, hint: str
) -> None:
    """config/model.py refuses float16 for Gemma 2, and the worker bfloat16 below 8.0."""
    model = {**LLAMA, "model_type": model_type, "architectures": [architecture], "head_dim": 128}
    error = ask(None, capability, model=model, dtype=dtype).trace.error
    assert error is not None and error.hint == hint


def test_an_fp8_cache_that_the_checkpoint_asks_for_is_dropped_by_a_dtype() -> None:
    """With kv_cache_scheme, --kv-cache-dtype auto is the FP8 cache that Triton refuses at 8.0."""
    quant = scheme("ct-fp8-dynamic") | {"kv_cache_scheme": KV}
    options = {"attention_backend": "TRITON_ATTN"}
    error = ask(quant, "8.0", **options).trace.error
    assert error is not None
    assert error.hint == "Drop the FP8 KV cache here: --kv-cache-dtype bfloat16."
    assert ask(quant, "8.0", kv_cache_dtype="bfloat16", **options).trace.error is None


def test_the_lowest_gpu_whose_backend_takes_the_layer() -> None:
    """Sparse latent attention: vLLM 0.32.0 refuses it below 9.0."""
    sizes = {
        "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32",
        "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
        "vocab_size": 129280, "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "n_group": 8,
        "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "index_topk": 2048,
        "index_n_heads": 64, "index_head_dim": 128, "hidden_act": "silu", "moe_layer_freq": 1,
        "rms_norm_eps": 1e-6, "norm_topk_prob": True, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "routed_scaling_factor": 2.5}
    error = ask(model=sizes, capability="8.9").trace.error
    assert error is not None
    assert error.message.startswith("No valid attention backend found for cuda")
    assert error.hint == "Use a GPU of 9.0, where FLASH_ATTN_MLA_SPARSE takes it."
