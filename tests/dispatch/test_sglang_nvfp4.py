"""NVFP4 on SGLang: answers that the engine gave beside those of tests/golden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 1, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 128256}
NVFP4: Mapping[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4",
                            "ignore": ["lm_head"]}
QKV = "model.layers.*.self_attn.qkv_proj"
WEIGHT_ONLY = {"SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16": "1"}


def ask(own: Mapping[str, Any] | None, capability: int, **options: Any) -> dict[str, Any]:
    """Return the answer to Llama with this quantization_config; `sizes` change the model's."""
    config = {**LLAMA, **options.pop("sizes", {})}
    if own is not None:
        config["quantization_config"] = dict(own)
    return explain(config, engine="sglang", capability=capability,
                   **{"engine_version": "0.5.22", **options}).to_dict()


@pytest.mark.parametrize("change, capability, options, words", [
    ({"group_size": 32}, 90, {}, "NVFP4 Marlin requires group_size=16, got 32."),
    ({"quant_algo": "W4A16_NVFP4", "group_size": 32}, 120, {},
     "NVFP4A16 Marlin requires group_size=16, got 32."),
    ({"ignore": None}, 100, {}, "NVFP4 quantization requires group_size and exclude_modules "
     "specified in the quantization config"),
    ({"quant_algo": "W4A8_NVFP4_FP8"}, 100, {}, "ModelOpt currently only supports: FP8, NVFP4, "
     "NVFP4_AWQ, W4A16_NVFP4 quantizations in sglang. Please check the quantization config for "
     "your model's configuration."),
    ({"group_size": 32}, 80, {"sizes": {"intermediate_size": 14344}},
     "Unsupported model when in features size is not multiple of 16"),
    ({"quant_algo": "W4A16_NVFP4"}, 90, {"sizes": {"intermediate_size": 14344}},
     "Unsupported model when input feature size is not a multiple of 16"),
])
def test_refusals(
    change: dict[str, Any], capability: int, options: dict[str, Any], words: str
) -> None:
    error = ask({**NVFP4, **change}, capability, **options)["error"]
    assert (error["type"], error["message"]) == ("ValueError", words)


def test_a_side_file_without_an_algorithm() -> None:
    side = {"producer": {"name": "modelopt"}, "quantization": {"group_size": 16}}
    error = ask(None, 100, quantization="modelopt_fp4",
                side_files={"hf_quant_config.json": side})["error"]
    assert error["message"] == ("Invalid quant_config, quantization method: modelopt_fp4,hf "
                                "architectures: LlamaForCausalLM. ")


@pytest.mark.parametrize("change, capability, options, found", [
    ({"group_size": 32}, 100, {}, ("fp4_gemm", "W4A4_nvfp4", "fp4")),
    ({"quant_algo": "W4A16_NVFP4"}, 100, {}, ("apply_fp4_marlin_linear", "W4A16_nvfp4", "none")),
    ({}, 100, {"env": WEIGHT_ONLY}, ("fp4_gemm", "W4A16_nvfp4", "none")),
    ({}, 90, {"env": WEIGHT_ONLY, "fp4_gemm_backend": "flashinfer_cutedsl"},
     ("fp4_gemm", "W4A16_nvfp4", "none")),
    ({"ignore": ["model.layers.0.self_attn*"]}, 100, {}, ("torch.mm", "W16A16", "none")),
])
def test_operators(
    change: dict[str, Any], capability: int, options: dict[str, Any], found: tuple[str, ...]
) -> None:
    layers = {x["path"]: x for x in ask({**NVFP4, **change}, capability, **options)["layers"]}
    assert tuple(layers[QKV][name] for name in ("kernel", "mode", "act")) == found


@pytest.mark.parametrize("scheme, resolved", [
    ("fp8", "float8_e4m3fn"), ("FP4", "bfloat16"), ({"type": "int", "num_bits": 8}, "bfloat16")])
def test_the_kv_cache(scheme: Any, resolved: str) -> None:
    """A scheme may be a text; attention layers have the method whatever it says."""
    answer = ask({**NVFP4, "kv_cache_scheme": scheme}, 100)
    assert (answer["kv_cache"]["resolved"], answer["kv_cache"]["method"]) == (
        resolved, "ModelOptFp8KVCacheMethod")


@pytest.mark.parametrize("version, methods", [
    ("0.5.22", "ModelOptFp4LinearMethod"), ("0.5.23", "UnquantizedLinearMethod")])
def test_other_keys_of_excluded_modules(version: str, methods: str) -> None:
    """config.json may name them as exclude_modules from 0.5.23 on (from_config)."""
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
    layers = {x["path"]: x for x in ask(config, 100, engine_version=version)["layers"]}
    assert layers["lm_head"]["method"] == methods


def stored(activations: bool) -> dict[str, Any]:
    """Return the config of an NVFP4 compressed-tensors checkpoint."""
    args = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
            "symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": args, "format": "nvfp4-pack-quantized",
             "input_activations": {**args, "dynamic": "local"} if activations else None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group},
            "format": "nvfp4-pack-quantized", "ignore": ["lm_head"]}


@pytest.mark.parametrize("version, capability, activations, options, found", [
    ("0.5.22", 90, True, {}, ("CompressedTensorsW4A16Fp4", "apply_fp4_marlin_linear")),
    ("0.5.22", 100, True, {"fp4_gemm_backend": "marlin"}, ("CompressedTensorsW4A4Fp4", "fp4_gemm")),
    ("0.5.23", 100, True, {"fp4_gemm_backend": "marlin"},
     ("CompressedTensorsW4A16Fp4", "apply_fp4_marlin_linear")),
    ("0.5.23", 120, True, {}, ("CompressedTensorsW4A4Fp4", "fp4_gemm")),
    ("0.5.22", 100, False, {}, ("CompressedTensorsW4A16Fp4", "mm_bf16_fp4")),
    ("0.5.22", 100, False, {"dtype": "float16"},
     ("CompressedTensorsW4A16Fp4", "apply_fp4_marlin_linear")),
    ("0.5.22", 120, False, {}, ("CompressedTensorsW4A16Fp4", "apply_fp4_marlin_linear")),
])
def test_schemes_of_compressed_tensors(
    version: str, capability: int, activations: bool, options: dict[str, str],
    found: tuple[str, str]
) -> None:
    answer = ask(stored(activations), capability, engine_version=version, **options)
    layers = {x["path"]: x for x in answer["layers"]}
    assert (layers[QKV]["scheme"], layers[QKV]["kernel"]) == found


@pytest.mark.parametrize("config", [NVFP4, stored(True), stored(False)])
def test_flashinfer_is_needed_but_for_marlin(config: Mapping[str, Any]) -> None:
    libs = {"flashinfer": False}
    with pytest.raises(NotKnownError, match=r"lib\.flashinfer is false"):
        ask(config, 100, libs=libs)
    layers = {x["path"]: x for x in ask(config, 90, libs=libs)["layers"]}
    assert layers[QKV]["kernel"] == "apply_fp4_marlin_linear"
