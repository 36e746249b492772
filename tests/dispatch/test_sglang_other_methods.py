"""Methods of few layers on SGLang 0.5.22: answers that the engine gave beside those of
tests/golden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.dispatch.test_sglang_nvfp4 import QKV, ask

INT8: Mapping[str, Any] = {"quant_method": "blockwise_int8", "activation_scheme": "dynamic",
                           "weight_block_size": [128, 128]}
ROUND: Mapping[str, Any] = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
                            "packing_format": "auto_round:auto_gptq"}
AWQ = {"packing_format": "auto_round:auto_awq"}
GPTQ: Mapping[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True,
                           "desc_act": False}
BNB: Mapping[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
DOWN, HEAD = "model.layers.*.mlp.down_proj", "lm_head"
NO_KERNEL = ("The non-Marlin GPTQ CUDA kernel has been removed. Use quantization='gptq_marlin' (or "
             "a Marlin-compatible checkpoint) instead.")


@pytest.mark.parametrize("config, options, kind, words", [
    ({**INT8, "activation_scheme": "static"}, {}, "ValueError", "The block-wise quantization only "
     "supports dynamic activation scheme for now, but got static activation scheme."),
    ({**INT8, "activation_scheme": "x"}, {}, "ValueError", "Unsupported activation scheme x"),
    ({**INT8, "weight_block_size": None}, {}, "AssertionError", ""),
    ({**INT8, "weight_block_size": [128]}, {}, "ValueError", "The quantization block size of "
     "weight must have 2 dimensions, but got 1 dimensions."),
    (INT8, {"tp": 8, "sizes": {"intermediate_size": 14400}}, "ValueError", "Weight "
     "output_partition_size = 1800 is not divisible by weight quantization block_n = 128."),
    ({"quant_method": "mxfp4"}, {}, "NotImplementedError",
     "Mxfp4 attention layer is not implemented"),
    (None, {"quantization": "mxfp4"}, "AssertionError", ""),
    ({**BNB, "bnb_4bit_quant_storage": "bfloat16"}, {}, "ValueError",
     "Unsupported bnb_4bit_quant_storage: bfloat16"),
    ({**ROUND, "sym": False}, {}, "RuntimeError", NO_KERNEL),
    ({**ROUND, "group_size": 256}, {}, "RuntimeError", NO_KERNEL),
    ({**ROUND, "backend": "awq"}, {}, "RuntimeError", NO_KERNEL),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True,
      "modules_to_not_convert": ["lm_head"]}, {"quantization": "moe_wna16"}, "TypeError",
     "UnquantizedLinearMethod.create_weights() missing 5 required positional arguments: "
     "'input_size_per_partition', 'output_partition_sizes', 'input_size', 'output_size', and "
     "'params_dtype'"),
    ({**GPTQ, "sym": False}, {"quantization": "moe_wna16"}, "RuntimeError", NO_KERNEL),
    ({**GPTQ, "group_size": 256}, {"quantization": "moe_wna16"}, "RuntimeError", NO_KERNEL),
    ({"export": {}}, {"quantization": "quark"}, "KeyError", "'quant_method'"),
    ({"export": {}}, {"quantization": "quark_mxfp4"}, "KeyError", "'quant_method'"),
    ({**ROUND, "packing_format": "x"}, {}, "ValueError", "Unsupported packing_format: x, currently "
     "only support  {'auto_round:auto_gptq', 'auto_round:auto_awq'}"),
    ({**ROUND, "bits": 5}, {}, "ValueError",
     "Unsupported weight_bits: 5, currently only support  {8, 2, 3, 4}"),
])
def test_refusals(
    config: Mapping[str, Any] | None, options: dict[str, Any], kind: str, words: str
) -> None:
    error = ask(config, 90, **options)["error"]
    assert (error["type"], error["message"]) == (kind, words)


@pytest.mark.parametrize("config, path, method, kernel", [
    ({**INT8, "ignored_layers": ["model.layers.0.self_attn"]}, QKV, "UnquantizedLinearMethod",
     "torch.mm"),
    ({**INT8, "modules_to_not_convert": ["model.layers.0.mlp.down_proj"]}, DOWN,
     "BlockInt8LinearMethod", "w8a8_block_int8_matmul"),
    ({**BNB, "llm_int8_skip_modules": ["q_proj"]}, QKV, "BitsAndBytesLinearMethod", None),
    ({**BNB, "llm_int8_skip_modules": ["model.layers.0.mlp"]}, DOWN, "UnquantizedLinearMethod",
     "torch.mm"),
    ({"quant_method": "gguf", "modules_to_not_convert": ["self_attn"]}, QKV, "GGUFLinearMethod",
     None),
    ({**ROUND, **AWQ}, QKV, "AWQLinearMethod", "awq_dequantize"),
    ({**ROUND, **AWQ, "sym": False}, QKV, "AWQLinearMethod", "gptq_marlin_gemm"),
    ({**ROUND, "lm_head": True}, HEAD, "UnquantizedLinearMethod", "torch.mm"),
    ({**ROUND, "extra_config": {"lm_head": {"bits": 8}}}, HEAD, "GPTQMarlinLinearMethod",
     "gptq_marlin_gemm"),
    ({**ROUND, "extra_config": {"model.layers.0.mlp.down_proj": {"bits": 16}}}, DOWN,
     "UnquantizedLinearMethod", "torch.mm"),
    ({**ROUND, "block_name_to_quantize": "model.layers.0.mlp"}, QKV, "UnquantizedLinearMethod",
     "torch.mm"),
])
def test_layers(config: Mapping[str, Any], path: str, method: str, kernel: str | None) -> None:
    found = next(x for x in ask(config, 90)["layers"] if x["path"] == path)
    assert (found["method"], found.get("kernel")) == (method, kernel)
