"""--quantization humming on SGLang 0.5.22 and 0.5.23 with humming-kernels 0.1.12: the engine's own
answers to these configs, from its start-up without values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain
from tests.dispatch.test_sglang_nvfp4 import QKV, ask

ONLINE, INPUT = "SGLANG_HUMMING_ONLINE_QUANT_CONFIG", "SGLANG_HUMMING_INPUT_QUANT_CONFIG"
GPTQ: Mapping[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False,
                           "sym": True}
AWQ: Mapping[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
FP8: Mapping[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS: Mapping[str, Any] = {**FP8, "weight_block_size": [128, 128]}
OWN: Mapping[str, Any] = {"quant_method": "humming", "dtype": "int4", "group_size": 128}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
QWEN: Mapping[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 16, "num_experts_per_tok": 4, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 1, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 32000}
VERSIONS = ("0.5.22", "0.5.23")


def compressed(form: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None = None
               ) -> dict[str, Any]:
    """Return a compressed-tensors config of one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": group}}


INT8_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
NVFP4 = compressed("nvfp4-pack-quantized", FP4, {**FP4, "dynamic": "local"})
MXFP4 = compressed("mxfp4-pack-quantized", {**FP4, "strategy": "group", "group_size": 32})
INT8 = compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"},
                  {**INT8_TOKEN, "group_size": None})


def qwen(config: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return the answer to a Qwen3 of experts on 9.0."""
    sizes = options.pop("sizes", {})
    return explain({**QWEN, **sizes, "quantization_config": dict(config)}, engine="sglang",
                   capability=90, quantization="humming", **options).to_dict()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("config, capability, mode, act", [
    (FP8, 90, "W8A8_fp8", "per_token"), (FP8, 75, "W8A16_fp8", "none"),
    (BLOCKS, 90, "W8A8_fp8", "per_token"), (BLOCKS, 86, "W8A16_fp8", "none"),
    (GPTQ, 90, "W4A16", "none"), ({**GPTQ, "bits": 3}, 120, "W3A16", "none"),
    (AWQ, 75, "W4A16", "none"), (INT8, 75, "W8A8_int8", "per_token"),
    (MXFP4, 100, "W4A16_mxfp4", "none"), (NVFP4, 80, "W4A16_nvfp4", "none"),
    (NVFP4, 90, "W4A8_float8e4m3", "per_token"), ({"quant_method": "bitnet"}, 90, "W2A16", "none"),
    ({"quant_method": "w4afp8", "activation_scheme": "dynamic"}, 90, "W8A8_fp8", "per_token"),
    (OWN, 89, "W4A4_int4", "group"),  # `dtype` is that of activations too
])
def test_layers(version: str, config: Mapping[str, Any], capability: int, mode: str, act: str
                ) -> None:
    found = ask(config, capability, quantization="humming", engine_version=version)
    layer = next(x for x in found["layers"] if x["path"] == QKV)
    assert found["method"]["config_class"] == "HummingConfig"
    assert (layer["method"], layer["kernel"], layer["mode"], layer["act"]) == (
        "HummingLinearMethod", "humming_gemm", mode, act)


@pytest.mark.parametrize("config, capability, fault", [
    (NVFP4, 90, "AssertionError"), (NVFP4, 120, "AssertionError"), (NVFP4, 89, "AssertionError"),
    (GPTQ, 110, "KeyError: 110"), (OWN, 90, "AssertionError"), (OWN, 120, "AssertionError"),
    (NVFP4, 80, None), (OWN, 89, None), (FP8, 100, None),
])
def test_first_forwards(config: Mapping[str, Any], capability: int, fault: str | None) -> None:
    found = ask(config, capability, quantization="humming")
    assert found["outcome"] == "ok"
    told = [x["message"] for x in found["findings"] if x["stage"] == "first forward"]
    assert bool(told) == (fault is not None) and all(fault and fault in x for x in told)


@pytest.mark.parametrize("config, options, kind, words", [
    ({**GPTQ, "bits": 8, "group_size": -1}, {}, "RuntimeError",
     "Trying to create tensor with negative dimension -4096: [-4096, 6144]"),
    ({**GPTQ, "desc_act": True}, {}, "AssertionError", ""),
    (compressed("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}), {},
     "TypeError", "RowvLLMParameter.__init__() missing 1 required positional argument: "
     "'input_dim'"),
    (compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"},
                INT8_TOKEN), {}, "TypeError", "CompressedTensorsInputSchema.__init__() missing 1 "
     "required keyword-only argument: 'group_size'"),
    ({"quant_method": "quark", "dtype": "x"}, {}, "ValueError",
     "unsupported weight quant_method: quark"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {}, "ValueError",
     "unsupported weight quant_method: bitsandbytes"),
    ({"quant_method": "mxfp4"}, {}, "ValueError", "Quantization method specified in the model "
     "config (mxfp4) does not match the quantization method specified in the `quantization` "
     "argument (humming)."),
    (BLOCKS, {"sizes": {"intermediate_size": 14400}}, "ValueError", "Weight "
     "output_partition_size = 14400 is not divisible by weight quantization block_n = 128."),
    (AWQ, {"sizes": {"intermediate_size": 14352}}, "AssertionError", ""),
    (None, {"env": {ONLINE: '{"group_size": 128}'}}, "TypeError", "HummingWeightSchema.__init__() "
     "missing 1 required keyword-only argument: 'b_dtype'"),
    (None, {"libs": {"humming": False}}, "ImportError", "Humming quantization requires "
     "`humming-kernels`. Please install it to use `--quantization humming`."),
])
def test_refusals(config: Mapping[str, Any] | None, options: dict[str, Any], kind: str, words: str
                  ) -> None:
    error = ask(config, 90, quantization="humming", **options)["error"]
    assert (error["type"], error["message"]) == (kind, words)


@pytest.mark.parametrize("config, given, online, mode", [
    (GPTQ, "float8e4m3", None, "W4A8_fp8"), (GPTQ, "int8", None, "W4A8_int8"),
    (FP8, "float16", None, "W8A16_fp8"), (MXFP4, "float8e4m3", None, "W4A8_float8e4m3"),
    (GPTQ, None, {"dtype": "float8e4m3", "force_requant": True}, "W8A16_fp8"),
    (FP8, None, {"dtype": "int4", "group_size": 128, "force_requant": True}, "W4A16"),
    (None, None, {"dtype": "int4", "group_size": 128}, "W4A16"),
])
def test_variables(config: Mapping[str, Any] | None, given: str | None,
                   online: Mapping[str, Any] | None, mode: str) -> None:
    env = {ONLINE: json.dumps(online), INPUT: json.dumps(given and {"dtype": given})}
    found = ask(config, 90, quantization="humming", env=env)
    assert next(x for x in found["layers"] if x["path"] == QKV)["mode"] == mode
    told = {x["id"] for x in found["findings"]}
    assert ("humming-online" in told) == (config is None)


def test_a_variable_that_is_no_json_counts_as_unset() -> None:
    found = ask(None, 90, quantization="humming", env={ONLINE: "{dtype"})
    assert next(x for x in found["layers"] if x["path"] == QKV)["mode"] == "W16A16"


@pytest.mark.parametrize("config, options, kind, words", [
    (FP8, {}, "AssertionError", ""),
    (FP8, {"sizes": {"num_experts": 15}}, "RuntimeError",
     "shape '[-1, 2, 1]' is invalid for input of size 15"),
    (BLOCKS, {"tp": 4}, "RuntimeError", "split_with_sizes expects split_sizes to sum exactly to 3 "
     "(input tensor's size at dimension -2), but got split_sizes=[2, 2]"),
    (GPTQ, {"moe_backend": "triton"}, "ValueError", "Humming quantization for MoE only supports "
     "moe_runner_backend='auto' or 'humming', got 'triton'."),
])
def test_experts_are_refused(config: Mapping[str, Any], options: dict[str, Any], kind: str,
                             words: str) -> None:
    error = qwen(config, **options)["error"]
    assert (error["type"], error["message"]) == (kind, words)
    assert error["layer"] == "model.layers.0.mlp.experts"


@pytest.mark.parametrize("config, options", [
    (GPTQ, {}), (GPTQ, {"moe_backend": "humming"}), (AWQ, {}), (BLOCKS, {}), (NVFP4, {}),
    (BLOCKS, {"tp": 4, "enable_expert_parallel": True}),
    ({"quant_method": "w4afp8", "activation_scheme": "dynamic"}, {}),
])
def test_experts(config: Mapping[str, Any], options: dict[str, Any]) -> None:
    layer = next(x for x in qwen(config, **options)["layers"] if x["module"] == "FusedMoE")
    assert (layer["method"], layer["moe_runner_backend"]) == ("HummingMoEMethod", "humming")


@pytest.mark.parametrize("config, runner", [
    (None, "triton"), (compressed("pack-quantized", {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}), "marlin"),
    (FP8, None), (BLOCKS, None),
])
def test_the_runner_asked_of_other_methods(config: Mapping[str, Any] | None, runner: str | None
                                           ) -> None:
    own = {} if config is None else {"quantization_config": dict(config)}
    found = explain({**QWEN, **own}, engine="sglang", capability=90,
                    moe_backend="humming").to_dict()
    layer = next(x for x in found["layers"] if x["module"] == "FusedMoE")
    assert layer["moe_runner_backend"] == runner


def test_schemas_of_the_package_that_no_rule_has_are_named() -> None:
    with pytest.raises(NotKnownError, match="scales of groups or channels"):
        ask({**OWN, "weight_scale_type": "tensor"}, 90, quantization="humming")
