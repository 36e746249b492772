"""AMD Quark checkpoints; the answers are those of the engine's own code
(model_executor/layers/quantization/quark/)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, QWEN_72B, ask, message
from quantplan.dispatch.vllm.quark_config import same
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import CheckpointError

from quantplan import Explanation, explain

QKV, DOWN = "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.down_proj"


def entry(dtype: str, qscheme: str, is_dynamic: bool = False, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "qscheme": qscheme, "is_dynamic": is_dynamic, "symmetric": True, **more}


FP8, FP8_CHANNEL = entry("fp8_e4m3", "per_tensor"), entry("fp8_e4m3", "per_channel")
FP8_DYNAMIC = entry("fp8_e4m3", "per_tensor", True)
FP8_TOKEN = entry("fp8_e4m3", "per_channel", True)
BLOCK = entry("fp8_e4m3", "per_block", block_size=[128, 128])
GROUPED = entry("fp8_e4m3", "per_group", True, group_size=128)
INT8, INT8_TOKEN = entry("int8", "per_tensor"), entry("int8", "per_channel", True)
INT4 = entry("uint4", "per_group", group_size=128)


def mx(dtype: str, is_dynamic: bool = False) -> dict[str, Any]:
    return entry(dtype, "per_group", is_dynamic, group_size=32, scale_format="e8m0")


NVFP4 = [entry("fp4", "per_group", group_size=16), FP8]
NVFP4_ACT = [entry("fp4", "per_group", True, group_size=16), FP8]


def quark(weight: Any, inputs: Any = None, **changes: Any) -> dict[str, Any]:
    """Return a Quark config whose layers are all alike, with CHANGES of its keys."""
    return {
        "quant_method": "quark", "exclude": ["lm_head"], "layer_quant_config": {},
        "layer_type_quant_config": {}, "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "global_quant_config": rule(weight, inputs), **changes}


def rule(weight: Any, inputs: Any = None, outputs: Any = None) -> dict[str, Any]:
    return {"weight": weight, "input_tensors": inputs, "output_tensors": outputs, "bias": None}


def layer(answer: Explanation, name: str = "qkv_proj") -> tuple[str | None, ...]:
    found = next(x for x in answer.trace.layers if x.path.endswith(name))
    return found.scheme, found.kernel, found.mode, found.act


@pytest.mark.parametrize("weight, inputs, capability, expected", [
    (FP8, FP8, "8.9", ("QuarkW8A8Fp8", "CutlassFP8ScaledMMLinearKernel", "W8A8_fp8", "static")),
    (FP8, FP8_DYNAMIC, "10.0",
     ("QuarkW8A8Fp8", "FlashInferFP8ScaledMMLinearKernel", "W8A8_fp8", "per_tensor")),
    (FP8_CHANNEL, FP8_TOKEN, "10.0",
     ("QuarkW8A8Fp8", "CutlassFP8ScaledMMLinearKernel", "W8A8_fp8", "per_token")),
    ([FP8], [FP8], "9.0", ("QuarkW8A8Fp8", "CutlassFP8ScaledMMLinearKernel", "W8A8_fp8", "static")),
    (BLOCK, GROUPED, "9.0", ("QuarkW8A8Fp8PerBlock",
                             "FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "W8A8_fp8", "group")),
    (INT8, INT8, "8.0", ("QuarkW8A8Int8", "CutlassInt8ScaledMMLinearKernel", "W8A8_int8",
                         "static")),
    (INT8, INT8_TOKEN, "8.0", ("QuarkW8A8Int8", "CutlassInt8ScaledMMLinearKernel", "W8A8_int8",
                               "per_token")),
    (INT4, None, "8.0", ("QuarkW4A16Int4", "MarlinLinearKernel", "W4A16", "none")),
    ({**INT4, "symmetric": False}, None, "9.0",
     ("QuarkW4A16Int4", "MacheteLinearKernel", "W4A16", "none")),
    (mx("fp4"), FP8, "9.0", ("QuarkW4A8_MXFP4_FP8", None, "emulated_mxfp4", "static")),
    (mx("fp4"), None, "10.0", ("QuarkOCP_MX", "MarlinMxFp4LinearKernel", "W4A16_mxfp4", "none")),
    (mx("fp4"), mx("fp4", True), "10.0",
     ("QuarkOCP_MX", "FlashInferMxFp4LinearKernel", "W4A4_mxfp4", "group")),
    (mx("fp4"), mx("fp4", True), "9.0",
     ("QuarkOCP_MX", "HummingMxFp4LinearKernel", "W4A8_float8e4m3", "group")),
    (mx("fp6_e3m2"), mx("fp6_e3m2", True), "12.0",
     ("QuarkOCP_MX", "HummingMxFp6LinearKernel", "W6A8_float8e4m3", "group")),
    (mx("fp6_e3m2"), mx("fp6_e3m2", True), "9.0",
     ("QuarkOCP_MX", "HummingMxFp6LinearKernel", "W6A16", "none")),
    (mx("fp6_e2m3"), None, "8.0", ("QuarkOCP_MX", "HummingMxFp6LinearKernel", "W6A16", "none")),
    (mx("fp8_e4m3"), mx("fp8_e4m3", True), "12.0",
     ("QuarkOCP_MX", "FlashInferCutlassMxfp8LinearKernel", "W8A8_mxfp8", "group")),
    (entry("fp8_e4m3", "per_block", block_size=[32, 32], scale_type="float8_e8m0fnu"), None, "8.0",
     ("QuarkOCP_MX", "MarlinMxfp8LinearKernel", "W8A16_mxfp8", "none")),
    (NVFP4, NVFP4_ACT, "10.0",
     ("QuarkNVFP4", "FlashInferCuteDslNvFp4LinearKernel", "W4A4_nvfp4", "group")),
    (NVFP4, NVFP4_ACT, "8.0", ("QuarkNVFP4", "MarlinNvFp4LinearKernel", "W4A16_nvfp4", "none"))])
def test_a_scheme_s_kernel_and_mode(
    weight: Any, inputs: Any, capability: str, expected: tuple[str, ...]
) -> None:
    assert layer(ask(quark(weight, inputs), capability)) == expected


def test_every_scheme_of_the_table_is_asked_above() -> None:
    (mark,) = test_a_scheme_s_kernel_and_mode.pytestmark  # type: ignore[attr-defined]
    asked = {expected[0] for *_, expected in mark.args[1]}
    assert asked == set(load_engine("vllm", "0.32.0")["quark_schemes"])


@pytest.mark.parametrize("weight, inputs, capability, words", [
    (FP8, FP8, "8.6", "Quantization scheme is not supported for the current GPU. Min capability: "
     "89. Current capability: 86."),
    (BLOCK, FP8, "9.0", f"No quark compatible scheme was found. Weight config: {BLOCK}, Input "
     f"config: {FP8}"),
    ({**BLOCK, "block_size": []}, GROUPED, "9.0", "Quark W8A8 FP8 per-block weight quantization "
     "requires `block_size` in the weight quantization config."),
    (None, None, "9.0", "No quark compatible scheme was found. Weight config: None, Input config: "
     "None"),
    ([FP8, FP8], FP8, "9.0", "Multi-entry weight or activation quantization configs are only "
     "supported for NVFP4."),
    ({**INT4, "group_size": -1}, None, "9.0",
     "Quark W4A16 weight.group_size must be a positive int, got -1"),
    ({k: v for k, v in INT4.items() if k != "symmetric"}, None, "9.0",
     "Quark W4A16 INT4/UINT4 configs must specify weight.symmetric"),
    ({**INT4, "symmetric": None}, None, "9.0",
     "Quark W4A16 weight.symmetric must be a bool, got None"),
    (mx("fp4"), FP8_DYNAMIC, "9.0", "Unsupported activation quant key: "
     "QuantKey(f8e4m3fn,scale(f32,dynamic,per_tensor),symmetric)"),
    (mx("fp4"), mx("int8", True), "9.0", "Unsupported input_dtype=int8 in Quark's vLLM "
     "integration. Supported activation dtypes are dict_keys(['mxfp4', 'mxfp6_e3m2', 'mxfp6_e2m3', "
     "'mxfp8_e4m3']), or None for weight-only quantization."),
    (mx("fp6_e3m2"), None, "7.0", "Failed to find a kernel that can implement the MXFP6 linear "
     "layer. Reasons: \nHummingMxFp6LinearKernel: Humming only supported on SM75+\n"
     "EmulationMxfp6LinearKernel: only supports MXFP4 or MXFP6 or unquantized activations")])
def test_what_a_layer_refuses(weight: Any, inputs: Any, capability: str, words: str) -> None:
    disabled = {"VLLM_DISABLED_KERNELS": ""}
    if "MXFP6" in words:  # without activations the emulation runs; MXFP8 ones it does not take
        inputs = mx("fp8_e4m3", True)
    answer = ask(quark(weight, inputs), capability, env=disabled,
                 dtype="float16" if capability < "8" else "bfloat16")
    assert message(answer) == words
    assert answer.trace.error is not None
    assert answer.trace.error.layer == QKV


@pytest.mark.parametrize("version, words", [
    ("0.32.0", "only supports MXFP4 or MXFP6 or unquantized activations"),
    ("0.33.0", "quantization scheme "
     "QuantKey(u8,scale(u8,static,GroupShape(row=1, col=32)),symmetric"
     ")xQuantKey(f8e4m3fn,scale(u8,dynamic,GroupShape(row=1, col=32)),symmetric) not supported")])
def test_activations_are_named_in_0_33(version: str, words: str) -> None:
    """0.33.0 asks _supports_quant_scheme before can_implement."""
    config = {**LLAMA, "quantization_config": quark(mx("fp4"), mx("fp8_e4m3", True))}
    error = explain(config, engine="vllm", engine_version=version, capability="9.0",
                    linear_backend="emulation", libs={"quark": True}).trace.error
    assert error is not None
    assert error.message.endswith(f"Reasons: \nEmulationMxfp4LinearKernel: {words}")


@pytest.mark.parametrize("changes, error", [
    ({"export": None}, ("ValidationError", "The export key should be included in the "
                        "configurations of Quark quantized model", None)),
    ({"export": {}}, ("TypeError", "object of type 'NoneType' has no len()", None)),
    ({"exclude": None}, ("TypeError", "'NoneType' object is not iterable", "model.embed_tokens")),
    ({"layer_type_quant_config": None},
     ("AttributeError", "'NoneType' object has no attribute 'get'", QKV)),
    ({"global_quant_config": None},
     ("AttributeError", "'NoneType' object has no attribute 'get'", QKV)),
    ({"global_quant_config": rule(FP8, FP8, FP8)},
     ("NotImplementedError", "Currently, Quark models with output_tensors and bias quantized are "
      "not supported", QKV))])
def test_what_a_config_lacks(changes: dict[str, Any], error: tuple[str | None, ...]) -> None:
    found = ask(quark(FP8, FP8, **changes), "9.0").trace.error
    assert found is not None
    assert (found.type, found.message, found.layer) == error


@pytest.mark.parametrize("pattern, name, scheme", [
    ("*down_proj", "down_proj", "QuarkW8A8Int8"), (DOWN, "down_proj", "QuarkW8A8Int8"),
    ("*.mlp.*", "gate_up_proj", "QuarkW8A8Int8"), ("*qkv_proj", "qkv_proj", "QuarkW8A8Fp8"),
    ("re:.*down_proj", "down_proj", "QuarkW8A8Fp8"), ("down_proj", "down_proj", "QuarkW8A8Fp8"),
    ("not-model.layers.0.mlp.down_proj-at-all", "down_proj", "QuarkW8A8Int8")])
def test_layer_quant_config(pattern: str, name: str, scheme: str) -> None:
    """Entries are shell patterns for the checkpoint's names; without a * the layer's name must be
    a part of the entry."""
    answer = ask(quark(FP8, FP8, layer_quant_config={pattern: rule(INT8, INT8_TOKEN)}), "9.0")
    assert layer(answer, name)[0] == scheme


def test_the_parts_of_a_fused_layer_agree() -> None:
    answer = ask(quark(FP8, FP8, layer_quant_config={"*v_proj": rule(INT8, INT8_TOKEN)}), "9.0")
    assert message(answer) == (
        "Found a different quantization configuration for ['q_proj', 'k_proj', 'v_proj'] in "
        f"{QKV}. vLLM requires all to use the same scheme.")


def test_layer_types_are_never_found() -> None:
    """_find_matched_config looks the class object up among names."""
    answer = ask(quark(FP8, FP8, layer_type_quant_config={"Linear": rule(INT8, INT8)}), "9.0")
    assert layer(answer)[0] == "QuarkW8A8Fp8"


@pytest.mark.parametrize("exclude, plain", [
    ([], set()), ([DOWN], {"down_proj"}), (["down_proj"], set()),
    (["re:.*mlp"], {"gate_up_proj", "down_proj"}), (["re:.*[qkv]_proj"], {"qkv_proj"})])
def test_exclude_holds_whole_names_or_expressions(exclude: list[str], plain: set[str]) -> None:
    answer = ask(quark(FP8, FP8, exclude=exclude), "9.0")
    found = {x.path.rsplit(".", 1)[-1] for x in answer.trace.layers
             if x.method == "UnquantizedLinearMethod" and x.layer_index == 0}
    assert found == plain


def test_embeddings_and_the_head_are_never_quantized() -> None:
    answer = ask(quark(FP8, FP8, exclude=[]), "9.0")
    assert [layer(answer, name)[0] for name in ("embed_tokens", "lm_head")] == [None, None]


KV_RULES = {"*k_proj": rule(FP8, FP8, FP8), "*v_proj": rule(FP8, FP8, FP8)}
KV = {"kv_cache_group": ["*k_proj", "*v_proj"], "pack_method": "reorder"}


@pytest.mark.parametrize("rules, error", [
    ({}, "The Quark quantized model has the kv_cache_group parameter setting, but no kv_cache "
     "quantization settings were found in the quantization configuration."),
    ({**KV_RULES, "*v_proj": rule(FP8, FP8, FP8_CHANNEL)},
     "The quantization method used for kv_cache should be the same, but the quantization method "
     "for the kv_cache layer in the config is different."),
    ({"*k_proj": rule(FP8, FP8), "*v_proj": rule(FP8, FP8)},
     "The kv_cache quantization configuration is empty."),
    ({"*k_proj": rule(FP8, FP8, FP8_CHANNEL), "*v_proj": rule(FP8, FP8, FP8_CHANNEL)},
     "Only support per-tensor scaling factor for quark KV cache. Expected qscheme: per_tensor, "
     "found qscheme: per_channel"),
    ({"*k_proj": rule(FP8, FP8, INT8), "*v_proj": rule(FP8, FP8, INT8)},
     "Currently supported kv cache quantization is dtype=fp8_e4m3, however received int8")])
def test_kv_caches_that_are_refused(rules: dict[str, Any], error: str) -> None:
    assert message(ask(quark(FP8, FP8, layer_quant_config=rules, export=KV), "9.0")) == error


def test_the_kv_cache_takes_the_outputs_of_its_layers() -> None:
    """q_proj's quantized output goes with them, so that the fused layer agrees."""
    rules = {**KV_RULES, "*q_proj": rule(FP8, FP8, FP8)}
    answer = ask(quark(FP8, FP8, layer_quant_config=rules, export=KV), "9.0")
    assert layer(answer)[0] == "QuarkW8A8Fp8"
    attention = next(x for x in answer.trace.layers if x.module == "Attention")
    assert (attention.method, attention.kv_cache_dtype) == ("QuarkKVCacheMethod", "auto")


def test_an_excluded_attention_layer_has_no_kv_method() -> None:
    answer = ask(quark(FP8, FP8, exclude=["model.layers.0.self_attn.attn"]), "9.0")
    methods = [x.method for x in answer.trace.layers if x.module == "Attention"]
    assert methods == [None, "QuarkKVCacheMethod"]


def test_e5m2_is_refused_as_for_fp8_checkpoints() -> None:
    answer = ask(quark(INT8, INT8), "9.0", kv_cache_dtype="fp8_e5m2")
    assert message(answer) == "fp8_e5m2 kv-cache is not supported with fp8 checkpoints."


@pytest.mark.parametrize("weight, inputs, words", [
    (INT4, None, "The input size is not aligned with the quantized weight shape. This can be "
     "caused by too large tensor parallel size. input_size_per_partition=3696, group_size=128."),
    (mx("fp4"), None, f"OCP MX linear layer {DOWN!r} has an input size per partition of "
     "3696, which must be divisible by the OCP MX group size 32. Choose a compatible "
     "tensor-parallel size or avoid tensor-parallel sharding for this layer.")])
def test_groups_that_tensor_parallelism_cuts(weight: Any, inputs: Any, words: str) -> None:
    assert message(ask(quark(weight, inputs), "9.0", model=QWEN_72B, tp=8)) == words


@pytest.mark.parametrize("first, second, agree", [
    ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"a": 1.0}, False), ({"a": 1}, {"b": 1}, False),
    ([1], [1, 2], True), ([1, 3], [1, 2], False), ({"a": [{}]}, {"a": [{"b": 1}]}, False)])
def test_configs_are_compared_as_the_engine_does(first: Any, second: Any, agree: bool) -> None:
    """quark/utils.py:deep_compare."""
    assert same(first, second) is agree


@pytest.mark.parametrize("changes", [
    {"export": {"kv_cache_group": "*k_proj"}}, {"exclude": "lm_head"}, {"export": []},
    {"layer_quant_config": {"*": 1}}, {"global_quant_config": rule("fp8")},
    {"global_quant_config": rule({**FP8, "is_dynamic": "no"})}])
def test_what_is_no_quark_config(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="quantization config"):
        ask(quark(FP8, FP8, **changes), "9.0")
