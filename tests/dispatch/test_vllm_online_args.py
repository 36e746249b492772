"""--quantization-config in vLLM 0.32.0: what is quantized while a checkpoint loads. Every
expectation is the oracle's answer: the engine's own code on an emulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from quantplan.tables.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import ask
from quantplan.dispatch.trace import Layer

from quantplan.cli import quantplan

QKV = "model.layers.0.self_attn.qkv_proj"
O_0 = "model.layers.0.self_attn.o_proj"
PLAIN = "UnquantizedLinearMethod"
TENSOR, BLOCK, CHANNEL, MX8, MX4 = (
    f"{name}OnlineLinearMethod" for name in ("Fp8PerTensor", "Fp8PerBlock", "Fp8Ptpc", "Mxfp8",
                                             "Mxfp4"))
KEYS = ["fp8_per_block_dynamic", "fp8_per_block_static", "fp8_per_channel_static",
        "fp8_per_tensor_dynamic", "fp8_per_tensor_static", "fp8_per_token", "int4_per_group_32",
        "int8_per_channel_static", "mxfp4", "mxfp8", "nvfp4_per_token"]
SHORTHANDS = ["fp8_per_block", "fp8_per_channel", "fp8_per_tensor", "int8_per_channel_weight_only",
              "mxfp4", "mxfp8", "nvfp4_per_token"]
NOTHING = ("OnlineQuantizationConfig requires at least one of quantization_config.linear, "
           "quantization_config.moe, or quantization_config.targets to be set.")
MX4_KEY = "QuantKey(u8,scale(u8,dynamic,GroupShape(row=1, col=32)),symmetric)"
def trace(args: Mapping[str, Any], method: str | None = "online") -> Any:
    return ask(quantization=method, quantization_config=args).trace


def layers(*args: Any, **options: Any) -> dict[str, Layer]:
    found = trace(*args, **options)
    assert found.error is None, found.error
    return {layer.path: layer for layer in found.layers}


def methods(*args: Any, **options: Any) -> tuple[str | None, str | None]:
    """Return the methods of qkv_proj and o_proj in layer 0."""
    found = layers(*args, **options)
    return found[QKV].method, found[O_0].method


def refused(*args: Any, **options: Any) -> tuple[str, str, str | None]:
    error = trace(*args, **options).error
    assert error is not None
    return error.type, error.message, error.layer


# What a spec stands for.


@pytest.mark.parametrize(("name", "method", "kernel"), [
    ("fp8_per_tensor", TENSOR, "CutlassFP8ScaledMMLinearKernel"),
    ("fp8_per_tensor_static", TENSOR, "CutlassFP8ScaledMMLinearKernel"),
    ("fp8_per_block", BLOCK, "FlashInferFp8DeepGEMMDynamicBlockScaledKernel"),
    ("fp8_per_channel", CHANNEL, "CutlassFP8ScaledMMLinearKernel"),
    ("mxfp8", MX8, "HummingMxfp8LinearKernel"), ("mxfp4", MX4, "HummingMxFp4LinearKernel"),
    ("int4_per_group_32", PLAIN, None)])
def test_linear_layers(name: str, method: str, kernel: str | None) -> None:
    found = layers({"linear": name})
    assert (found[QKV].method, found[QKV].kernel) == (method, kernel)
    assert found["lm_head"].method == "UnquantizedEmbeddingMethod"


def test_names_of_a_spec_are_keys_only() -> None:
    """mxfp8 is both a shorthand and a key; the key mxfp4 is that of activations."""
    assert methods({"linear": {"weight": "mxfp8"}}) == (MX8, MX8)
    kind, message, layer = refused({"linear": {"weight": "mxfp4"}})
    assert (kind, layer) == ("ValueError", QKV)
    assert message.startswith(f"online quantization for QKVParallelLinear with weight={MX4_KEY} is "
                              "not supported; supported weight keys: ['QuantKey(f8e4m3fn,scale(f32")


@pytest.mark.parametrize(("args", "kind", "message"), [
    ({"linear": "zzz"}, "ValidationError",
     f"unknown quantization name 'zzz'; expected one of {KEYS}"),
    ({"linear": "nvfp4_per_token"}, "ValidationError",
     "online shorthand 'nvfp4_per_token' does not define a linear spec"),
    ({"linear": {"weight": 4}}, "TypeError", "expected str or QuantKey, got int"),
    ({"targets": ["x"]}, "TypeError", "targets must be a dict, got list"),
    ({"targets": {"a": "b"}}, "ValidationError",
     f"targets[a] = b is not a valid online shorthand name; expected one of {SHORTHANDS}"),
    ({"targets": {"o": "mxfp8"}, "linear": "fp8_per_block"}, "ValidationError",
     "quantization_config.targets is mutually exclusive with quantization_config.linear/moe, got "
     "targets={'o': 'mxfp8'}, linear=fp8_per_block_static, moe=None."),
    ({"targets": {"o": "mxfp8"}, "moe": "mxfp4"}, "ValidationError",
     "quantization_config.targets is mutually exclusive with quantization_config.linear/moe, got "
     "targets={'o': 'mxfp8'}, linear=None, "
     "moe=QuantKey(u8,scale(u8,static,GroupShape(row=1, col=32)),symmetric)."),
    ({}, "ValidationError", NOTHING), ({"ignore": ["*.o_proj"]}, "ValidationError", NOTHING)])
def test_args_that_the_engine_refuses(
    args: Mapping[str, Any], kind: str, message: str
) -> None:
    assert refused(args) == (kind, message, None)


@pytest.mark.parametrize(("args", "what"), [
    ({"foo": 1}, "--quantization-config: foo; wanted one of linear, moe, ignore, targets; found 1"),
    ({"linear": []}, "--quantization-config: linear; wanted a name, or weight and activation; "
     "found a list of 0 values"),
    ({"linear": {"foo": 1}}, "--quantization-config: linear; wanted a name, or weight and "
     "activation; found an object of 1 fields"),
    ({"ignore": "o_proj"}, '--quantization-config: ignore; wanted a list of names; found "o_proj"'),
    ({"ignore": [1]}, "--quantization-config: ignore; wanted a list of names; "
     "found a list of 1 values")])
def test_args_of_another_shape(args: Mapping[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        trace(args)
    assert str(caught.value) == what


def test_a_pattern_that_is_no_expression() -> None:
    with pytest.raises(UsageError, match=r"pattern 're:\('; wanted a regular expression"):
        trace({"linear": "mxfp8", "ignore": ["re:("]})


def test_an_activation_is_refused_at_the_layer() -> None:
    assert refused({"linear": {"weight": "fp8_per_tensor_static", "activation": "fp8_per_token"}}
                   ) == ("ValueError", "activation override (activation=QuantKey(f8e4m3fn,scale(f32"
                         ",dynamic,per_token),symmetric)) is not yet supported for online "
                         "Fp8PerTensorOnlineLinearMethod", QKV)
    assert methods({"linear": {"activation": "fp8_per_token"}}) == (PLAIN, PLAIN)


# With --quantization.


@pytest.mark.parametrize(("method", "args", "found"), [
    (None, {"linear": "mxfp8"}, (PLAIN, PLAIN)),
    ("fp8_per_tensor", {"linear": "fp8_per_block"}, (BLOCK, BLOCK)),
    ("fp8_per_tensor", {"ignore": ["*.o_proj"]}, (TENSOR, PLAIN)),
    ("fp8_per_block", {"moe": "mxfp8"}, (BLOCK, BLOCK)),
    ("fp8", {"ignore": ["*.o_proj"]}, (TENSOR, PLAIN)),
    ("mxfp8", {"ignore": ["*.o_proj"]}, (MX8, PLAIN)),
    ("experts_int8", {"linear": "fp8_per_block"}, (BLOCK, BLOCK))])
def test_a_shorthand_beneath_the_args(
    method: str | None, args: Mapping[str, Any], found: tuple[str, str]
) -> None:
    assert methods(args, method) == found


@pytest.mark.parametrize("method", ["fp8", "fp8_per_tensor"])
def test_a_shorthand_and_targets(method: str) -> None:
    """Refused when arguments are read, but for fp8, which becomes a shorthand later."""
    assert refused({"targets": {"*o_proj": "mxfp8"}}, method) == (
        "ValidationError", "quantization_config.targets is mutually exclusive with "
        "quantization_config.linear/moe, got targets={'*o_proj': 'mxfp8'}, "
        "linear=fp8_per_tensor_static, moe=fp8_per_tensor_static.", None)


# ignore and targets.


@pytest.mark.parametrize(("ignore", "found"), [
    (["o_proj"], (TENSOR, TENSOR)), (["re:.*o_proj"], (TENSOR, PLAIN)),
    (["*o_proj"], (TENSOR, PLAIN)), (["*.self_attn.*"], (PLAIN, PLAIN)),
    (["model.layers.[0]*"], (PLAIN, PLAIN)), (["*q_proj", "*k_proj", "*v_proj"], (PLAIN, TENSOR)),
    (["*qkv_proj"], (PLAIN, TENSOR))])
def test_ignore(ignore: list[str], found: tuple[str, str]) -> None:
    assert methods({"linear": "fp8_per_tensor", "ignore": ignore}) == found


def test_a_leaf_alone_cannot_be_ignored() -> None:
    assert refused({"linear": "fp8_per_tensor", "ignore": ["*q_proj"]}) == (
        "ValueError", f"Found different quantization schemes for the shards of {QKV}. vLLM "
        "requires all to use the same scheme.", QKV)


@pytest.mark.parametrize(("targets", "found"), [
    ({"re:.*o_proj": "fp8_per_block"}, (PLAIN, BLOCK)), ({O_0: "mxfp8"}, (PLAIN, MX8)),
    ({"*q_proj": "mxfp8", "*k_proj": "mxfp8", "*v_proj": "mxfp8"}, (MX8, PLAIN)),
    ({"*q_proj": "mxfp8", "*k_proj": "mxfp8", "*v_proj": "mxfp4"}, (MX4, PLAIN)),
    ({"re:.*[qkv]_proj": "mxfp8"}, (MX8, PLAIN)), ({}, (PLAIN, PLAIN))])
def test_targets(targets: Mapping[str, str], found: tuple[str, str]) -> None:
    """A pattern that fits the fused layer itself comes first: *v_proj fits qkv_proj."""
    assert methods({"targets": targets}) == found


@pytest.mark.parametrize(("args", "message", "layer"), [
    ({"targets": {"re:.*q_proj": "mxfp8"}},
     f"Found unmatched shards for {QKV}: [{{'re:.*q_proj'}}, set(), set()]. vLLM requires all "
     "shards of a fused layer to match a target.", QKV),
    ({"targets": {"*o_proj": "mxfp8", "*self_attn.o*": "mxfp4"}},
     f"Found multiple quantization_config.targets matches for the shards of {O_0}: "
     "[{'*o_proj', '*self_attn.o*'}]. Each shard may match at most one target.", O_0),
    ({"targets": {"re:.*[qk]_proj": "mxfp8", "re:.*[l-q]_proj": "mxfp4",
                  "re:.*\\.v_proj": "fp8_per_block"}},
     f"Found multiple quantization_config.targets matches for the shards of {QKV}: "
     "[{'re:.*[l-q]_proj', 're:.*[qk]_proj'}, ", QKV),
    ({"targets": {"re:.*\\.[qk]_proj": "mxfp8", "re:.*\\.v_proj": "fp8_per_block"}},
     f"Found different quantization_config.targets values for the shards of {QKV}: "
     "['re:.*\\\\.[qk]_proj', 're:.*\\\\.[qk]_proj', 're:.*\\\\.v_proj']. vLLM requires all "
     "shards of a fused layer to use the same target.", QKV),
    ({"targets": {"*o_proj": "nvfp4_per_token"}},
     "targets pattern *o_proj = nvfp4_per_token does not define a QuantSpec for RowParallelLinear "
     f"layers (matched at {O_0}).", O_0),
    ({"targets": {"*": "fp8_per_tensor"}},
     "Layer  was matched by quantization_config.targets (*), but online quantization is not "
     "supported for VocabParallelEmbedding.", None),
    ({"targets": {"*lm_head": "mxfp8"}},
     "Layer lm_head was matched by quantization_config.targets (*lm_head), but online quantization "
     "is not supported for ParallelLMHead.", "lm_head"),
    ({"targets": {"re:.*attn$": "mxfp8"}},
     "Layer model.layers.0.self_attn.attn was matched by quantization_config.targets (re:.*attn$), "
     "but online quantization is not supported for Attention.", "model.layers.0.self_attn.attn"),
    ({"targets": {"*o_proj": "mxfp8"}, "ignore": ["*o_proj"]},
     f"Layer {O_0} matches both quantization_config.ignore and quantization_config.targets "
     "(['*o_proj']); a layer may not be referenced by both.", O_0)])
def test_targets_that_are_refused(
    args: Mapping[str, Any], message: str, layer: str | None
) -> None:
    kind, found, where = refused(args)
    assert (kind, found[:len(message)], where) == ("ValueError", message, layer)


# The command line.


def test_the_flag_reaches_the_answer() -> None:
    asked = ["explain", "llama-3.1-8b", "--capability", "9.0", "--quantization", "online",
             "--quantization-config"]
    result = CliRunner().invoke(quantplan, [*asked, '{"linear": "fp8_per_block"}'])
    assert result.exit_code == 0
    assert "--quantization-config linear=fp8_per_block" in " ".join(result.output.split())
    result = CliRunner().invoke(quantplan, [*asked, "3"])
    assert str(result.exception) == "--quantization-config 3; wanted a JSON object"
