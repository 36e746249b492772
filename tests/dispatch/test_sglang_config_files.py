"""Files beside config.json under SGLang 0.5.22, each with the answer that the engine gave."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import explain
from tests.dispatch.test_sglang_golden import named

LLAMA = {name: value for name, value in named("llama8b|w4afp8|sm90")["case"]["config"].items()
         if name != "quantization_config"}
MOE = named("qwen3_30b_a3b|none|sm90")["case"]["config"]
GPTQ = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"w_bit": 4, "q_group_size": 128, "zero_point": True}
UNKNOWN_ALGO = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "W4A8_AWQ"}}
QKV = "model.layers.*.self_attn.qkv_proj"
SLIM = "quant_model_description.json"


def ask(model: dict[str, Any], files: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return our answer for 9.0."""
    return explain(model, engine="sglang", engine_version="0.5.22", capability=90,
                   side_files=files, **options).to_dict()


@pytest.mark.parametrize("files, options, method", [
    ({"quantize_config.json": GPTQ}, {"quantization": "gptq_marlin"}, "GPTQMarlinLinearMethod"),
    ({"quantize_config.json": GPTQ}, {}, "UnquantizedLinearMethod"),
    ({"quant_config.json": AWQ}, {"quantization": "awq", "dtype": "float16"}, "AWQLinearMethod"),
    ({SLIM: {"model.layers.0.self_attn.qkv_proj.weight": "W8A8_DYNAMIC"}}, {},
     "ModelSlimLinearMethod"),
    ({SLIM: {"model.layers.0.self_attn.q_proj.weight": "W8A8_DYNAMIC"}}, {},
     "UnquantizedLinearMethod"),
])
def test_what_serves(files: dict[str, Any], options: dict[str, Any], method: str) -> None:
    layers = {layer["path"]: layer for layer in ask(LLAMA, files, **options)["layers"]}
    assert layers[QKV]["method"] == method


@pytest.mark.parametrize("model, files, options, message", [
    (LLAMA, {"quantize_config.json": GPTQ}, {"quantization": "moe_wna16"},
     "Cannot find any of ['quant_method'] in the model's quantization config."),
    (LLAMA, {"quantize_config.json": GPTQ}, {"quantization": "awq_marlin"},
     "Cannot find any of ['zero_point'] in the model's quantization config."),
    (LLAMA, {"quantize_config.json": GPTQ}, {"quantization": "auto-round"},
     "Cannot find the config file for auto-round"),
    (LLAMA, {"hf_quant_config.json": UNKNOWN_ALGO}, {"quantization": "petit_nvfp4"}, "Petit "
     "currently only supports: NVFP4 quantizations in sglang. Please check the "
     "`hf_quant_config.json` file for your model's quant configuration."),
    (LLAMA, {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": None}}}, {"quantization": "modelopt"}, "Invalid quant_config, quantization "
     "method: modelopt,hf architectures: LlamaForCausalLM. "),
    (LLAMA, {SLIM: {}}, {"quantization": "fp8"}, "Quantization method specified in the model "
     "config (modelslim) does not match the quantization method specified in the `quantization` "
     "argument (fp8)."),
    (MOE, {SLIM: {"model.layers.0.self_attn.q_proj.weight": "FLOAT"}}, {}, "Detected some but not "
     "all shards of model.layers.0.self_attn.qkv_proj are quantized. All shards of fused layers to "
     "have the same precision."),
])
def test_refusals(
    model: dict[str, Any], files: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    assert ask(model, files, **options)["error"]["message"] == message
