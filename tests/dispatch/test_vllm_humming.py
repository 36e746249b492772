"""--quantization humming in vLLM 0.32.0: 16-bit checkpoints, and those of other methods. Every
expectation is the oracle's answer: the engine's own code and the package humming 0.1.17, on an
emulated 9.0."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, quantization, scheme
from quantplan.dispatch.trace import Layer
from quantplan.tables.errors import NotKnownError

QKV = "model.layers.0.self_attn.qkv_proj"
O_0 = "model.layers.0.self_attn.o_proj"
MISSING = "HummingWeightSchema.__init__() missing 1 required keyword-only argument: 'b_dtype'"


def asked(quant: Any, online: Any = None, given: Any = None, **options: Any) -> Any:
    env = {}
    if online is not None:
        env["VLLM_HUMMING_ONLINE_QUANT_CONFIG"] = json.dumps(online)
    if given is not None:
        env["VLLM_HUMMING_INPUT_QUANT_CONFIG"] = json.dumps(given)
    return ask(quant, quantization="humming", env=env, **options).trace


def layers(*args: Any, **options: Any) -> dict[str, Layer]:
    trace = asked(*args, **options)
    assert trace.error is None, trace.error
    return {x.path: x for x in trace.layers}


def refused(*args: Any, **options: Any) -> tuple[str, str, str | None]:
    error = asked(*args, **options).error
    assert error is not None
    return error.type, error.message, error.layer


def served(found: dict[str, Layer]) -> set[str]:
    """Return the leaves of both layers that Humming serves."""
    return {path.removeprefix("model.layers.") for path, layer in found.items()
            if layer.method == "HummingLinearMethod"}


ALL = {f"{index}.{name}" for index in (0, 1) for name in (
    "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")}
O_PROJ = {"0.self_attn.o_proj", "1.self_attn.o_proj"}
DOWN = {"0.mlp.down_proj", "1.mlp.down_proj"}
LAYER_0 = {name for name in ALL if name.startswith("0.")}


@pytest.mark.parametrize("quant", [
    "awq4-g128", "awq8", "gptq4-g128", "gptq2", "gptq4-desc", "fp8-static", "fp8-block128",
    "ct-w4a16", "ct-fp8-block", "ct-mxfp4"])
def test_it_takes_over_a_checkpoint_of_another_method(quant: str) -> None:
    found = layers(quant)
    assert served(found) == ALL
    assert found["lm_head"].method == "UnquantizedEmbeddingMethod"
    assert (found[QKV].kernel, found[QKV].mode) == (None, None)


@pytest.mark.parametrize(("quant", "kind", "message", "layer"), [
    (None, "TypeError", MISSING, None),
    ("gptq4-gchan", "RuntimeError",
     "Trying to create tensor with negative dimension -4096: [-4096, 6144]", QKV),
    ("ct-fp8-dynamic", "TypeError",
     "'>' not supported between instances of 'NoneType' and 'int'", QKV),
    ("ct-w4a16-chan", "TypeError",
     "RowvLLMParameter.__init__() missing 1 required positional argument: 'input_dim'", QKV),
    ("ct-w4a16-actorder", "AssertionError", "actorder is not supported by humming", None),
    ("ct-w8a8-int8-asym", "ValueError",
     "asymmetric input quantization is not supported by humming", None),
    ("ct-mxfp8", "AssertionError", "", None),
    ("bnb-nf4", "ValueError", "unsupported weight quant_method: bitsandbytes", None),
    ("nomethod", "ValueError", "unsupported weight quant_method:", None),
    ({"quant_method": "quark"}, "TypeError",
     "QuarkWeightSchema.__init__() missing 1 required keyword-only argument: 'dtype'", None),
    ({"quant_method": "awq"}, "TypeError",
     "AWQWeightSchema.__init__() missing 2 required keyword-only arguments: 'bits' and "
     "'group_size'", None),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "KeyError",
     "'config_groups'", None),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "act_bits": 8}, "AssertionError",
     "autoround act_bits=8 (activation quantization) is not supported by humming", None),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "zzz"},
     "ValueError", "unsupported autoround packing_format: 'zzz'", None),
])
def test_what_the_package_does_not_read(
    quant: Any, kind: str, message: str, layer: str | None
) -> None:
    assert refused(quant) == (kind, message, layer)


def test_groups_ordered_by_activation_fail_when_they_are_converted() -> None:
    """humming/schema/gptq.py:GPTQWeightSchema.to_humming_schema; experts ask for it at once."""
    fails = [(f.id, f.stage) for f in asked("gptq4-desc").findings if f.severity == "error"]
    assert fails == [("humming-activation-order", "weight loading")]
    assert not [f for f in asked("gptq4-g128").findings if f.severity == "error"]
    experts = {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
               "num_local_experts": 8, "num_experts_per_tok": 2}
    error = ask("gptq4-desc", model=experts, quantization="humming").trace.error
    assert error is not None
    assert (error.type, error.message, error.layer) == (
        "AssertionError", "", "model.layers.0.block_sparse_moe.experts")


INT8 = {"num_bits": 8, "type": "int", "dynamic": True, "symmetric": True, "strategy": "token"}


@pytest.mark.parametrize(("changes", "kind", "message", "layer"), [
    ({"weights": {"strategy": "token"}}, "ValueError",
     "unsupported compressed-tensors strategy: token", QKV),
    ({"weights": {"group_size": None}}, "AssertionError", "", QKV),
    ({"weights": {"group_size": -1}}, "RuntimeError",
     "Trying to create tensor with negative dimension -4096: [6144, -4096]", QKV),
    ({"input_activations": {"num_bits": 6, "type": "int", "dynamic": True}}, "ValueError",
     "unsupported int6", QKV),
    ({"input_activations": {"num_bits": 8, "type": "int"}}, "TypeError",
     "CompressedTensorsInputSchema.__init__() missing 1 required keyword-only argument: 'dynamic'",
     None),
])
def test_compressed_tensors_groups(
    changes: dict[str, Any], kind: str, message: str, layer: str | None
) -> None:
    assert refused(scheme("ct-w4a16", **changes)) == (kind, message, layer)


@pytest.mark.parametrize(("changes", "expected"), [
    ({"targets": ["re:.*"]}, set()), ({"weights": None}, set()),
    ({"input_activations": INT8}, ALL), ({"weights": {"symmetric": False}}, ALL),
])
def test_the_first_group_for_linear(changes: dict[str, Any], expected: set[str]) -> None:
    assert served(layers(scheme("ct-w4a16", **changes))) == expected


@pytest.mark.parametrize(("changes", "expected"), [
    ({"ignore": ["o_proj"]}, ALL - O_PROJ),
    ({"ignored_layers": ["self_attn"], "ignore": ["mlp"]},
     {name for name in ALL if "mlp" in name}),
    ({"modules_to_not_convert": ["re:model.layers.0.*"]}, ALL - LAYER_0),
    ({"modules_to_not_convert": ["re:layers"]}, ALL), ({"dynamic": {}}, ALL),
    ({"dynamic": {"-:.*o_proj": {}}}, ALL - O_PROJ),
    ({"dynamic": {"+:.*o_proj": {"bits": 8}}}, ALL),
])
def test_skipped_layers(changes: dict[str, Any], expected: set[str]) -> None:
    assert served(layers(quantization("awq4-g128", **changes))) == expected


def test_a_dynamic_rule_has_its_say_in_one_layer() -> None:
    found = layers(quantization("awq4-g128", dynamic={"+:.*o_proj": {"bits": 8}}))
    assert str(found[O_0].why).startswith("Humming W8A16: uint8 weights")
    assert refused(quantization("awq4-g128", dynamic={"+:.*o_proj": {"group_size": -1}})) == (
        "RuntimeError", "Trying to create tensor with negative dimension -4096: [-4096, 4096]", O_0)
    assert refused(quantization("awq4-g128", dynamic=None)) == (
        "TypeError", "'NoneType' object is not iterable", None)


# 16-bit checkpoints: VLLM_HUMMING_ONLINE_QUANT_CONFIG.


@pytest.mark.parametrize(("online", "expected"), [
    ({"dtype": "uint4", "group_size": 128}, ALL), ({"b_dtype": "int4"}, ALL),
    ({"weight_dtype": "float8e4m3"}, ALL), ({"dtype": "uint4", "group_size": -1}, ALL),
    ({"dtype": "uint4", "ignore": ["o_proj"]}, ALL - O_PROJ),
    ({"dtype": "uint4", "ignored_layers": [], "ignore": ["o_proj"]}, ALL),
    ({"dtype": "uint4", "dynamic": {"-:.*down_proj": {}, "+:.*o_proj": {"dtype": "uint8"}}},
     ALL - DOWN),
])
def test_online(online: dict[str, Any], expected: set[str]) -> None:
    assert served(layers(None, online)) == expected


@pytest.mark.parametrize(("online", "kind", "message", "layer"), [
    ({}, "TypeError", MISSING, None), ({"group_size": 32}, "TypeError", MISSING, None),
    ({"dtype": "foo"}, "NotImplementedError", "", None),
    ({"dtype": "UINT4"}, "NotImplementedError", "", None),
    ({"dtype": "float5"}, "ValueError", "invalid floating point dtype: float5", None),
    ({"dtype": "intx"}, "ValueError", "invalid integer dtype: intx", None),
    ({"dtype": "float8e9m9"}, "AssertionError", "", None),
    ({"dtype": "uint4", "scale_type": "bad"}, "ValueError", "'bad' is not a valid WeightScaleType",
     None),
    ({"dtype": "uint4", "scale_2_type": "channel"}, "AssertionError",
     "secondary scales require group scales or channel scales with a tensor secondary scale", None),
    ({"dtype": "uint4", "scale_type": "tensor", "has_zero_point": True}, "AssertionError", "", QKV),
    ({"dtype": "uint4", "dynamic": {"+:.*o_proj": {"dtype": "bad"}}}, "NotImplementedError", "",
     O_0),
])
def test_online_configs_that_are_refused(
    online: dict[str, Any], kind: str, message: str, layer: str | None
) -> None:
    assert refused(None, online) == (kind, message, layer)


@pytest.mark.parametrize("tp", [1, 2])
def test_inputs_that_are_no_multiple_of_32_stay_in_16_bits(tp: int) -> None:
    model = {**LLAMA, "intermediate_size": 14352}
    assert served(layers(None, {"dtype": "uint4"}, model=model, tp=tp)) == ALL - DOWN


# Activations: VLLM_HUMMING_INPUT_QUANT_CONFIG, and weights made anew.


@pytest.mark.parametrize(("quant", "given", "why"), [
    ("awq4-g128", None, "Humming W4A16: uint4 weights in groups of 128, bfloat16 activations"),
    ("fp8-dynamic", None, "Humming W8A8: float8e4m3 weights, float8e4m3 activations"),
    ("awq4-g128", {"dtype": "int8"}, "Humming W4A8: uint4 weights in groups of 128, int8 "
                                     "activations"),
    ("awq4-g128", {"dtype": "int8", "ignore": ["_proj"]},
     "Humming W4A16: uint4 weights in groups of 128, bfloat16 activations"),
])
def test_what_a_layer_computes(quant: str, given: Any, why: str) -> None:
    """humming_activation.py's rules, which the oracle's Humming kernels agree with."""
    assert layers(quant, given=given)[QKV].why == why


@pytest.mark.parametrize(("given", "kind", "message"), [
    ({"dtype": "bad"}, "NotImplementedError", ""),
    ({"dtype": "int8", "quant_mode": "x"}, "ValueError",
     "'x' is not a valid InputQuantizationMode"),
])
def test_activations_that_are_refused(given: dict[str, Any], kind: str, message: str) -> None:
    assert refused("awq4-g128", given=given) == (kind, message, None)


def test_activations_that_nothing_can_replace_fail_while_loading() -> None:
    """FP4 activations have no tensor cores on 9.0, and a given schema allows no fallback."""
    strict = asked("awq4-g128", given={"dtype": "float4e2m1"})
    loose = asked("awq4-g128", given={"dtype": "float4e2m1", "allow_fallback": True})
    assert [f.id for f in strict.findings if f.severity == "error"] == ["humming-no-activations"]
    assert [f.id for f in loose.findings if f.severity == "error"] == []


def test_weights_made_anew() -> None:
    found = layers("fp8-dynamic", {"force_requant": True, "dtype": "uint4"})
    assert found[QKV].why == "Humming W4A16: uint4 weights, bfloat16 activations"
    assert refused("fp8-dynamic", {"force_requant": True}) == ("TypeError", MISSING, None)
    assert layers("fp8-dynamic", {"dtype": "bad"})[QKV].method == "HummingLinearMethod"


@pytest.mark.parametrize("name", ["VLLM_HUMMING_ONLINE_QUANT_CONFIG",
                                  "VLLM_HUMMING_INPUT_QUANT_CONFIG"])
def test_a_variable_that_is_no_json(name: str) -> None:
    error = ask("awq4-g128", quantization="humming", env={name: "notjson"}).trace.error
    assert error is not None
    assert (error.type, error.message) == (
        "JSONDecodeError", "Expecting value: line 1 column 1 (char 0)")


def test_weights_are_read_before_the_variable_of_activations() -> None:
    assert refused(None, given=None)[1] == MISSING
    error = ask(None, quantization="humming",
                env={"VLLM_HUMMING_INPUT_QUANT_CONFIG": "notjson"}).trace.error
    assert error is not None
    assert (error.type, error.message) == ("TypeError", MISSING)


def test_a_variable_that_names_a_file(tmp_path: Path) -> None:
    """envs.py:maybe_convert_json_str_or_file."""
    file = tmp_path / "weights.json"
    file.write_text('{"force_requant": true, "dtype": "uint4"}')
    found = ask("fp8-dynamic", quantization="humming",
                env={"VLLM_HUMMING_ONLINE_QUANT_CONFIG": str(file)}).trace
    assert {x.path: x for x in found.layers}[QKV].why == (
        "Humming W4A16: uint4 weights, bfloat16 activations")


def test_the_package_is_needed() -> None:
    assert refused("awq4-g128", libs={"humming": False}) == (
        "ModuleNotFoundError", "No module named 'humming'", None)
    with pytest.raises(NotKnownError, match="whether the package humming is installed"):
        asked("awq4-g128", libs={"humming": None})
