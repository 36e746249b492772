"""--quantization-config in vLLM 0.32.0 on top of a quantized checkpoint, and for experts. Every
expectation is the oracle's answer: the engine's own code on an emulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask
from quantplan.dispatch.trace import Finding, Layer

from quantplan import explain

QKV = "model.layers.0.self_attn.qkv_proj"
O_0 = "model.layers.0.self_attn.o_proj"
EXPERTS = "model.layers.0.mlp.experts"
PLAIN = "UnquantizedLinearMethod"
MX8, MX4 = "Mxfp8OnlineLinearMethod", "Mxfp4OnlineLinearMethod"
MODELOPT = {"quant_method": "modelopt", "ignore": ["lm_head"]}
FP8 = {"dtype": "fp8_e4m3", "is_dynamic": False, "qscheme": "per_tensor", "symmetric": True}
CONFIGS: dict[str, Any] = {
    "nvfp4": {**MODELOPT, "quant_algo": "NVFP4"}, "mxfp8": {**MODELOPT, "quant_algo": "MXFP8"},
    "experts_int8": {"quant_method": "experts_int8"},
    "block": {"quant_method": "fp8", "activation_scheme": "dynamic",
              "weight_block_size": [128, 128]},
    "round": {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
              "packing_format": "auto_round:auto_gptq"},
    "quark": {"quant_method": "quark", "exclude": ["lm_head"], "layer_quant_config": {},
              "layer_type_quant_config": {}, "export": {"kv_cache_group": [],
                                                        "pack_method": "order"},
              "global_quant_config": {"weight": FP8, "input_tensors": FP8, "output_tensors": None,
                                      "bias": None}},
}
QWEN3_MOE = {
    **LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "head_dim": 128,
    "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "vocab_size": 151936,
    "max_position_embeddings": 40960, "num_hidden_layers": 1,
}


def trace(args: Mapping[str, Any], quant: Any = None, capability: str = "9.0",
          **options: Any) -> Any:
    return ask(CONFIGS.get(str(quant), quant), capability, quantization_config=args,
               quantization=None if quant else "online", **options).trace


def methods(args: Mapping[str, Any], quant: Any) -> tuple[str | None, str | None]:
    """Return the methods of qkv_proj and o_proj in layer 0."""
    found: dict[str, Layer] = {layer.path: layer for layer in trace(args, quant).layers}
    return found[QKV].method, found[O_0].method


def refused(args: Mapping[str, Any], quant: Any) -> tuple[str, str, str | None]:
    error = trace(args, quant).error
    return error.type, error.message, error.layer


def experts(args: Mapping[str, Any], quant: Any = None, capability: str = "9.0") -> Any:
    return trace(args, quant, capability, model=QWEN3_MOE)


# On top of a quantized checkpoint.


def quantized_twice(found: tuple[Finding, ...]) -> list[str]:
    return [f.message for f in found if f.id == "quantized-twice"]


@pytest.mark.parametrize(("name", "scheme", "stuck"), [
    ("fp8-dynamic", None, True), ("ct-w8a8-int8", "CompressedTensorsW8A8Int8", True),
    ("quark", "QuarkW8A8Fp8", True), ("nvfp4", None, True),
    ("mxfp8", None, False), ("experts_int8", None, False)])
def test_layers_are_quantized_again(name: str, scheme: str | None, stuck: bool) -> None:
    """Loading fails but for ModelOpt's MXFP8, the one method with dequantize_weight."""
    answer = trace({"linear": "mxfp8"}, name, capability="10.0")
    found = {layer.path: layer for layer in answer.layers}[QKV]
    assert (found.method, found.scheme, found.kernel) == (
        MX8, scheme, "FlashInferCutedslMxfp8LinearKernel")
    assert len(quantized_twice(answer.findings)) == stuck


@pytest.mark.parametrize("name", ["awq4-g128", "gptq4-g128", "ct-w4a16", "round"])
def test_methods_that_keep_no_weight(name: str) -> None:
    assert refused({"linear": "fp8_per_tensor"}, name) == (
        "AttributeError", "'QKVParallelLinear' object has no attribute 'weight'", QKV)
    assert methods({"linear": "mxfp4"}, name) == (MX4, MX4)  # it is asked of no shape


def test_the_checkpoint_keeps_what_is_ignored() -> None:
    assert methods({"targets": {"*o_proj": "mxfp8"}}, "fp8-static") == ("Fp8LinearMethod", MX8)
    assert methods({"linear": "mxfp8", "ignore": ["*proj"]}, "ct-w4a16") == (
        "CompressedTensorsLinearMethod",) * 2
    assert methods({"linear": "mxfp8"}, "ct-ignore-re") == (MX8, MX8)


def test_the_checkpoint_is_asked_first() -> None:
    """A source that its own kernels refuse is refused; Humming's weight has no shape here."""
    assert refused({"linear": "mxfp8"}, "gptq4-g256")[1] == (
        "Marlin does not support group_size = 256. Only group_sizes = [-1, 32, 64, 128] are "
        "supported.")
    with pytest.raises(NotKnownError, match="what HummingLinearMethod keeps"):
        ask("awq4-g128", quantization="humming", quantization_config={"linear": "mxfp8"})


# Experts.


@pytest.mark.parametrize(("name", "capability", "method"), [
    ("fp8_per_block", "9.0", "Fp8PerBlockOnlineMoEMethod"),
    ("mxfp8", "10.0", "Mxfp8OnlineMoEMethod"),
    ("mxfp4", "9.0", "Mxfp4OnlineMoEMethod"),
    ("int8_per_channel_weight_only", "9.0", "Int8OnlineMoEMethod"),
    ("int4_per_group_32", "9.0", "UnquantizedFusedMoEMethod")])
def test_experts(name: str, capability: str, method: str) -> None:
    found = {x.path: x for x in experts({"moe": name}, capability=capability).layers}
    assert {x.method for path, x in found.items() if "experts" in path} == {method}
    assert found[QKV].method == PLAIN


def test_experts_by_target() -> None:
    found = experts({"targets": {"*.experts": "mxfp8"}})
    assert {x.method for x in found.layers if "experts" in x.path} == {"Mxfp8OnlineMoEMethod"}


def test_experts_are_quantized_once() -> None:
    error = experts({"moe": "mxfp8"}, "block", "10.0").error
    assert (error.type, error.message, error.layer) == (
        "NotImplementedError",
        "Requantizing checkpoint-quantized MoE layers is not supported.", EXPERTS)


@pytest.mark.parametrize(("asked", "capability", "message"), [
    ("nvfp4_per_token", "10.0", None),
    ("nvfp4_per_token", "9.0", "Per-token NVFP4 activation for pre-quantized weights requires the "
     "FlashInfer TRTLLM MoE backend."),
    ("mxfp8", "10.0", "Unsupported ModelOpt NVFP4 MoE activation override: QuantKey(f8e4m3fn,"
     "scale(u8,dynamic,GroupShape(row=1, col=32)),symmetric). Use "
     "quantization_config.moe.activation='nvfp4_per_token' or omit the override.")])
def test_activations_of_modelopt_experts(
    asked: str, capability: str, message: str | None
) -> None:
    answer = experts({"moe": {"activation": asked}}, "nvfp4", capability)
    assert (answer.error.message if answer.error else None) == message


def test_0_33_quantizes_experts_again() -> None:
    config = {**QWEN3_MOE, "quantization_config": CONFIGS["block"]}
    answer = explain(config, engine_version="0.33.0", capability="10.0",
                     quantization_config={"moe": "mxfp8"})
    assert {x.method for x in answer.trace.layers if "experts" in x.path} == {
        "Mxfp8OnlineMoEMethod"}


@pytest.mark.parametrize(("shorthand", "text"), [
    ("fp8_per_tensor", "Requantizing checkpoint-quantized MoE layers is not supported."),
    ("mxfp8", None), ("mxfp4", None)])
def test_shorthands_over_a_checkpoint_that_overrides_them(shorthand: str, text: str | None) -> None:
    """gpt-oss' own method stands before --quantization; the shorthand still composes with it, but
    for the two that are names of checkpoint methods too
    (config/quantization.py:_DEFERRED_ONLINE_SHORTHANDS)."""
    answer = explain("gpt-oss-20b", engine="vllm", engine_version="0.32.0", capability=90,
                     quantization=shorthand).to_dict()
    assert answer["method"]["resolved"] == "gpt_oss_mxfp4"
    assert (answer["error"] and answer["error"]["message"]) == text
