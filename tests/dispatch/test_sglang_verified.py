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
