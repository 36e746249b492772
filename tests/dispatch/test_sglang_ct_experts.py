"""Routed experts of compressed-tensors checkpoints: SGLang 0.5.22's own answers for a Qwen3-MoE."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import Explanation, explain

MODEL: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 1,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "hidden_act": "silu", "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel"}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
FORMATS = {"int": "pack-quantized", "float": "float-quantized"}
DIFFER = "All MoE projections need to have same quantization scheme but found multiple"
ONLY_GROUPS = ("The Triton WNA16 MoE backend only supports symmetric INT4 group quantization with "
               "group_size=32 or 128 and no actorder.")


def ask(weights: Any, inputs: Any = None, capability: int = 90, ignore: tuple[str, ...] = (),
        **options: Any) -> Explanation:
    """Return our answer for the model quantized so."""
    fmt = "nvfp4-pack-quantized" if weights is NVFP4 else FORMATS[weights["type"]]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    quant = {"quant_method": "compressed-tensors", "format": fmt, "config_groups": {"g": group},
             "ignore": ["lm_head", "re:.*mlp.gate$", *ignore]}
    return explain({**MODEL, "quantization_config": quant}, engine="sglang",
                   engine_version="0.5.22", capability=capability, **options)


@pytest.mark.parametrize("weights, inputs, capability, options, scheme, runner", [
    (CHANNEL, TOKEN, 90, {"tp": 4}, "CompressedTensorsW8A8Fp8MoE", "triton"),
    (INT4, None, 110, {"tp": 2}, "CompressedTensorsWNA16MoE", "marlin"),
    (INT4, None, 100, {}, "CompressedTensorsWNA16TritonMoE", "triton"),
    ({**INT4, "group_size": 64}, None, 120, {}, "CompressedTensorsWNA16MoE", "marlin"),
    ({**INT4, "symmetric": False}, None, 100, {"tp": 4}, "CompressedTensorsWNA16MoE", "marlin"),
    (NVFP4, {**NVFP4, "dynamic": "local"}, 80, {"moe_backend": "triton"},
     "CompressedTensorsW4A16Nvfp4MoE", "marlin"),
    (NVFP4, {**NVFP4, "dynamic": "local"}, 120, {"moe_backend": "marlin"},
     "CompressedTensorsW4A4Nvfp4MoE", "flashinfer_cutlass"),
    (NVFP4, {**NVFP4, "dynamic": "local"}, 100, {"moe_backend": "flashinfer_trtllm"},
     "CompressedTensorsW4A4Nvfp4MoE", "flashinfer_trtllm"),
    (INT4, None, 120, {"moe_backend": "flashinfer_trtllm"}, "CompressedTensorsWNA16MoE", "marlin"),
    (CHANNEL, TOKEN, 90, {"moe_backend": "deep_gemm"}, "CompressedTensorsW8A8Fp8MoE", "none"),
])
def test_the_scheme_and_its_runner(  # noqa: PLR0917
    weights: Any, inputs: Any, capability: int, options: dict[str, Any], scheme: str, runner: str
) -> None:
    layers = ask(weights, inputs, capability, **options).trace.layers
    found = next(layer for layer in layers if layer.path == "model.layers.0.mlp.experts")
    assert (found.method, found.scheme, found.moe_backend) == (
        "CompressedTensorsFusedMoEMethod", scheme, runner)


@pytest.mark.parametrize("asked, kind, message", [
    ({"weights": INT4, "ignore": ("re:.*down_proj",)}, "ValueError", DIFFER),
    ({"weights": {**INT4, "actorder": "group"}, "moe_backend": "triton", "tp": 8}, "ValueError",
     ONLY_GROUPS),
    ({"weights": {**CHANNEL, "strategy": "tensor"}, "inputs": TOKEN, "tp": 2}, "AssertionError",
     ""),
    ({"weights": {**CHANNEL, "strategy": "block", "block_structure": [128, 128]},
      "inputs": {**TOKEN, "strategy": "group", "group_size": 128}, "tp": 8}, "ValueError",
     "The output_size of gate's and up's weight = 96 is not divisible by weight quantization "
     "block_n = 128."),
    ({"weights": NVFP4, "capability": 89, "tp": 8}, "ValueError",
     "NVFP4 Marlin MoE requires intermediate_size_per_partition % 64 == 0, got 96."),
])
def test_what_is_refused(asked: dict[str, Any], kind: str, message: str) -> None:
    error = ask(**asked).trace.error
    assert error is not None and (error.type, error.message) == (kind, message)


def test_ignored_experts_stay_in_16_bits() -> None:
    layers = ask(INT4, ignore=("re:.*experts.*",)).trace.layers
    found = next(layer for layer in layers if layer.path.endswith("mlp.experts"))
    assert (found.method, found.moe_backend) == ("UnquantizedFusedMoEMethod", "triton")
