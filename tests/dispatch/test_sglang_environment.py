"""Environment variables of SGLang: how their words are read, former names, what no rule has; and
ModelOpt configs nested in config.json. Answers are those that 0.5.22 itself gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain
from tests.dispatch.test_sglang_deepseek_v4 import V4
from tests.dispatch.test_sglang_nvfp4 import LLAMA, QKV, ask

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCK = {**FP8, "weight_block_size": [128, 128]}
INNER = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
MARLIN, CUTLASS, BMM = "apply_fp8_marlin_linear", "fp8_scaled_mm", "flashinfer_bmm_fp8"
DEEP_GEMM, TRITON = "w8a8_block_fp8_matmul_deepgemm", "w8a8_block_fp8_matmul_triton"
FLASHINFER = "gemm_fp8_nt_groupwise"


@pytest.mark.parametrize("config, capability, env, kernel", [
    (FP8, 100, {"SGLANG_FORCE_FP8_MARLIN": "1"}, MARLIN),
    (FP8, 100, {"SGL_FORCE_FP8_MARLIN": "1"}, MARLIN),
    (FP8, 100, {"SGLANG_FORCE_FP8_MARLIN": "yes"}, CUTLASS),
    (MODELOPT, 100, {"SGLANG_FORCE_FP8_MARLIN": "yes"}, MARLIN),
    (MODELOPT, 100, {"SGLANG_FORCE_FP8_MARLIN": "on"}, BMM),
    (BLOCK, 90, {"SGLANG_ENABLE_JIT_DEEPGEMM": "no"}, TRITON),
    (BLOCK, 90, {"SGLANG_ENABLE_JIT_DEEPGEMM": "off"}, DEEP_GEMM),
    (BLOCK, 100, {"SGL_ENABLE_JIT_DEEPGEMM": "0"}, FLASHINFER),
    (BLOCK, 100, {"SGLANG_ENABLE_JIT_DEEPGEMM": "0", "SGLANG_IS_FLASHINFER_AVAILABLE": "0"},
     TRITON),
])
def test_words_and_names_of_variables(
    config: Mapping[str, Any], capability: int, env: dict[str, str], kernel: str
) -> None:
    found = {layer["path"]: layer for layer in ask(config, capability, env=env)["layers"]}
    assert found[QKV]["kernel"] == kernel


@pytest.mark.parametrize("name, value", [
    ("SGLANG_SHARED_EXPERT_TP1", "1"), ("SGLANG_EXTERNAL_MODEL_PACKAGE", "mine"),
    ("SGL_SHARED_EXPERT_TP1", "y"),
])
def test_variables_that_no_rule_has(name: str, value: str) -> None:
    with pytest.raises(NotKnownError, match="environment variable SGLANG_"):
        ask(FP8, 90, env={name: value})
    assert ask(FP8, 90, env={"SGLANG_SHARED_EXPERT_TP1": "0"})["outcome"] == "ok"


@pytest.mark.parametrize("inner, capability, path, method", [
    (INNER, 120, "lm_head", "ModelOptFp8LinearMethod"),
    ({**INNER, "exclude_modules": ["lm_head", "*self_attn*"]}, 90, QKV, "ModelOptFp8LinearMethod"),
    ({**INNER, "exclude_modules": ["model.layers.0.self_attn.q_proj"]}, 89, QKV,
     "ModelOptFp8LinearMethod"),
    ({"quant_algo": "NVFP4", "exclude_modules": ["*.o_proj"]}, 120,
     "model.layers.*.self_attn.o_proj", "ModelOptFp4LinearMethod"),
    ({"quant_algo": "NVFP4", "exclude_modules": None, "group_size": 16}, 89, "lm_head",
     "ModelOptFp4LinearMethod"),
])
def test_a_nested_modelopt_config_of_config_json_is_flat_but_for_its_algorithm(
    inner: Mapping[str, Any], capability: int, path: str, method: str
) -> None:
    """The engine writes the algorithm beside the nested part, and its classes then read that level
    only: excluded modules and the KV cache's algorithm are lost."""
    found = ask({"quant_method": "modelopt", "quantization": inner}, capability)
    layers = {layer["path"]: layer for layer in found["layers"]}
    assert layers[path]["method"] == method
    assert found["kv_cache"]["resolved"] == "bfloat16"


@pytest.mark.parametrize("gpu, env, kernels", [
    ("l40s", {}, ["triton_scaled_mm", "triton_scaled_mm", CUTLASS]),
    ("l40s", {"SGLANG_ENABLE_FP8_GEMM_CONFIG_TUNE": "0"}, [CUTLASS] * 3),
    ("l40", {}, [CUTLASS] * 3),
])
def test_tuned_tiles_of_a_product(gpu: str, env: dict[str, str], kernels: list[str]) -> None:
    """kernels/ops/gemm/configs/ has per-channel tiles of L40S for these sizes of an 8B model, and
    none of 28672 x 4096 (fp8_kernel.py:get_w8a8_channelwise_fp8_configs)."""
    config = {**LLAMA, "quantization_config": FP8}
    found = explain(config, engine="sglang", engine_version="0.5.22", gpu=gpu, env=env).to_dict()
    assert [layer["kernel"] for layer in found["layers"] if layer["method"] == "Fp8LinearMethod"
            and "down_proj" not in layer["path"]] == kernels


def test_what_the_class_of_deepseek_v4_builds_otherwise_is_not_known() -> None:
    config = {**V4, "model_type": "deepseek_v41"}
    with pytest.raises(NotKnownError, match=r"DeepSeek V4\.1"):
        explain(config, engine="sglang", capability=100)


@pytest.mark.parametrize("dynamic, words", [
    ([], "'list' object has no attribute 'items'"),
    ({"+:.*down_proj": None}, "'NoneType' object has no attribute 'get'"),
])
def test_rules_of_gptq_that_are_no_objects(dynamic: Any, words: str) -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
              "dynamic": dynamic}
    error = ask(config, 90)["error"]
    assert (error["type"], error["message"]) == ("AttributeError", words)


@pytest.mark.parametrize("n, block, words", [
    (1000, [1, 128], "shape '[-1, 64]' is invalid for input of size 148000"),
    (4096, [128, 128], None),
])
def test_scales_of_blocks_that_marlin_cannot_order(
    n: int, block: list[int], words: str | None
) -> None:
    """down_proj has `n` output features, and 18944 input features in groups of block[1]."""
    sizes = {"hidden_size": n, "intermediate_size": 18944, "num_attention_heads": 8,
             "num_key_value_heads": 8, "head_dim": 128}
    error = ask({**FP8, "weight_block_size": block}, 80, sizes=sizes)["error"]
    assert (error and error["message"]) == words


def test_a_rule_of_gptq_changes_nothing_with_a_value_of_another_type() -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
              "dynamic": {"+:.*down_proj": {"bits": None}}}
    modes = {layer["mode"] for layer in ask(config, 90)["layers"] if layer["path"] != "lm_head"}
    assert modes == {None, "W4A16"}
