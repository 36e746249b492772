"""The names that vLLM 0.32.0's override hooks answer, and the configs that name a method without a
quant_method. Every expectation is the oracle's answer: the engine's own code, capability 9.0 unless
said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.trace import Refusal
from quantplan.dispatch.vllm.names import NamedMethod, name_method
from quantplan.tables.engine_loading import load_engine

TABLE = load_engine("vllm", "0.32.0")
MISMATCH = ("Quantization method specified in the model config ({}) does not match the "
            "quantization method specified in the `quantization` argument ({}).")


def named(
    model: Any, requested: str | None = None, capability: int = 90,
    side_files: dict[str, Any] | None = None,
) -> NamedMethod:
    """Return the name of a config.json; MODEL may be a quantization_config."""
    config = model if "architectures" in model else {**LLAMA, "quantization_config": model}
    checkpoint = Checkpoint("llama", "test", config, side_files or {})
    return name_method(TABLE, checkpoint, Deployment(quantization=requested), capability)


def refusal(*asked: Any, **options: Any) -> str:
    with pytest.raises(Refusal) as raised:
        named(*asked, **options)
    assert (raised.value.error.stage, raised.value.error.type) == ("method name",
                                                                   "ValidationError")
    return raised.value.error.message


GPT_OSS = {**LLAMA, "model_type": "gpt_oss", "quantization_config": {
    "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}
BLOCK = quantization("fp8-block128")
V4 = {**BLOCK, "quant_method": "deepseek_v4_fp8"}
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
         "data_type": "int", "packing_format": "auto_round:auto_gptq"}


@pytest.mark.parametrize(("model", "requested", "answer"), [
    (ROUND, None, "inc"), (ROUND, "inc", "inc"), (ROUND, "auto_gptq", "inc"), (ROUND, "fp8", "inc"),
    (ROUND, "moe_wna16", "inc"), (ROUND, "auto-round", "inc"), (ROUND, "humming", "humming"),
    ({**ROUND, "quant_method": "AUTO-ROUND"}, None, "inc"),
    (GPT_OSS, None, "gpt_oss_mxfp4"), (GPT_OSS, "mxfp4", "gpt_oss_mxfp4"),
    (GPT_OSS, "fp8", "gpt_oss_mxfp4"), ({**GPT_OSS, "model_type": "llama"}, None, "mxfp4"),
    ({**GPT_OSS, "model_type": "llama"}, "humming", "humming"),
    (BLOCK, "deepseek_v4_fp8", "deepseek_v4_fp8"), (BLOCK, None, "fp8"),
    (V4, None, "deepseek_v4_fp8"), (V4, "deepseek_v4_fp8", "deepseek_v4_fp8"),
    ({**LLAMA, "model_type": "deepseek_v4", "quantization_config": BLOCK}, None,
     "deepseek_v4_fp8"),
    (quantization("gptq4-g128"), "moe_wna16", "moe_wna16"),
    (quantization("gptq4-asym"), "moe_wna16", "moe_wna16"),
    (quantization("awq4-g128"), "humming", "humming"),
    (quantization("awq4-g128"), "marlin", "auto_awq"),
])
def test_the_first_hook_that_answers(model: Any, requested: str | None, answer: str) -> None:
    assert named(model, requested).resolved == answer


@pytest.mark.parametrize(("model", "requested", "own", "capability"), [
    (V4, "fp8", "deepseek_v4_fp8", 90), ({**GPT_OSS, "model_type": "llama"}, "fp8", "mxfp4", 90),
    ({**GPT_OSS, "model_type": "llama"}, "gpt_oss_mxfp4", "mxfp4", 90),
    (quantization("gptq2"), "moe_wna16", "gptq", 90),
    (quantization("awq8"), "moe_wna16", "awq", 90),
    (quantization("gptq4-desc"), "moe_wna16", "gptq", 90),
    (quantization("awq4-g128"), "moe_wna16", "awq", 70),
    (quantization("fp8-dynamic"), "moe_wna16", "fp8", 90),
    (quantization("awq4-g128"), "auto-round", "awq", 90),
    (quantization("awq4-g128"), "none", "awq", 90), ({}, "fp8", None, 90),
])
def test_no_hook_answers(model: Any, requested: str, own: str | None, capability: int) -> None:
    assert refusal(model, requested, capability) == MISMATCH.format(own, requested)


def test_humming_refuses_gpt_oss() -> None:
    assert refusal(GPT_OSS, "humming") == (
        "For gpt-oss model, use '--moe-backend humming' instead of '--quantization humming'.")


# ModelOpt exports: the producer's algorithm names the method, whatever quant_method says.


def export(algo: str | None, producer: str | None = "modelopt", **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"quantization": {"quant_algo": algo}, **fields}
    return found if producer is None else {**found, "producer": {"name": producer}}


@pytest.mark.parametrize(("algo", "method"), [
    ("FP8", "modelopt"), ("fp8", "modelopt"), ("FP8_PB_WO", "modelopt"), ("NVFP4", "modelopt_fp4"),
    ("FP8_PER_CHANNEL_PER_TOKEN", "modelopt"), (None, None)])
@pytest.mark.parametrize("in_file", [False, True])
def test_a_modelopt_export_is_named_by_its_algorithm(
    algo: str, method: str | None, in_file: bool
) -> None:
    found = export(algo)
    model = LLAMA if in_file else found
    files = {"hf_quant_config.json": found} if in_file else {}
    assert named(model, side_files=files).resolved == method


@pytest.mark.parametrize("algo", ["MIXED_PRECISION", "MXFP8", "W4A16_AWQ", "INT8"])
def test_an_algorithm_that_names_nothing(algo: str) -> None:
    assert refusal(export(algo)) == f"Unknown ModelOpt quant algo: {algo}"


def test_where_the_producer_counts() -> None:
    assert named(export("FP8", quant_method="awq")).resolved == "modelopt"
    assert named(export("FP8", producer="other")).resolved is None
    legacy = {"quantization": {"quant_algo": "FP8", "modelopt_quant_config": {}}}
    assert named(legacy).resolved == "modelopt"
    assert named({**LLAMA, "compression_config": export("FP8")}).resolved is None
    both = {**LLAMA, "quantization_config": quantization("awq4-g128")}
    assert named(both, side_files={"hf_quant_config.json": export("FP8")}).resolved == "auto_awq"


@pytest.mark.parametrize(("algo", "method"), [
    ("FP8", "modelopt"), ("NVFP4", "modelopt_fp4"), ("W4A16_NVFP4", "modelopt_fp4"),
    ("MXFP8", "modelopt_mxfp8"), ("mixed_precision", "modelopt_mixed"), ("INT8", "modelopt")])
def test_a_named_modelopt_config_is_told_apart_by_its_algorithm(algo: str, method: str) -> None:
    """modelopt.py: override_quantization_method of the four classes, in that order."""
    assert named({"quant_method": "modelopt", "quant_algo": algo}).resolved == method
    assert named(export(algo, producer=None, quant_method="modelopt")).resolved == method


def test_kimi_k3_s_experts_rename_the_method() -> None:
    """model_executor/models/config.py:KimiK3ForConditionalGenerationConfig."""
    quant = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    kimi = {**LLAMA, "architectures": ["KimiK3ForConditionalGeneration"]}
    assert named({**kimi, "quantization_config": quant}).resolved == "mxfp4"
    assert named({**LLAMA, "quantization_config": quant}).resolved == "compressed-tensors"


def test_deepseek_v4_renames_the_method_for_its_config_class() -> None:
    """model_executor/models/config.py:DeepseekV4ForCausalLMConfig changes the config that the class
    reads; the hooks are asked with fp8. So Humming says "unsupported weight quant_method:
    deepseek_v4_fp8"."""
    model = {**LLAMA, "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
             "quantization_config": quantization("fp8-dynamic")}
    found = named(model, "humming")
    assert (found.checkpoint, found.resolved) == ("fp8", "humming")
    assert found.config is not None
    assert found.config["quant_method"] == "deepseek_v4_fp8"


# Names that moved out of the engine.


@pytest.mark.parametrize("name", TABLE["moved_methods"])
def test_a_moved_name_is_unknown_and_has_a_way_on(name: str) -> None:
    with pytest.raises(Refusal) as raised:
        named({"quant_method": name if name != "auto-round" else "auto_round"})
    error = raised.value.error
    listed = "[" + ", ".join(repr(method) for method in TABLE["methods"]) + "]"
    assert error.message.endswith(f". Must be one of {listed}.")
    assert error.hint in [row["hint"] for row in TABLE["moved_methods"].values()]
