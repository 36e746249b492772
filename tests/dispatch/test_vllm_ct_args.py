"""Compressed-tensors configs as they may be written: the defaults and validators of
compressed_tensors 0.17.0 QuantizationArgs, and the shape of everything around them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import ask, quantization, scheme
from quantplan.dispatch.ct_args import Args, read_args
from quantplan.tables.errors import CheckpointError


def args(**fields: Any) -> Args:
    found = read_args(fields, "weights")
    assert found is not None
    return found


@pytest.mark.parametrize("raw, strategy", [
    ({}, "tensor"), ({"group_size": 128}, "group"), ({"group_size": -1}, "channel"),
    ({"strategy": "CHANNEL"}, "channel"), ({"strategy": None}, "tensor")])
def test_the_strategy_is_inferred(raw: dict[str, Any], strategy: str) -> None:
    assert args(**raw).strategy == strategy


def test_defaults() -> None:
    assert (args().num_bits, args().type, args().symmetric, args().dynamic) == (
        8, "int", True, False)
    assert args(type="FLOAT").type == "float"
    assert args(block_structure="128x128", strategy="block").block_structure == [128, 128]
    assert args(actorder=True, group_size=128).actorder == "group"
    assert read_args(None, "weights") is None


GROUPS = ("(<QuantizationStrategy.TOKEN: 'token'>, <QuantizationStrategy.TENSOR: 'tensor'>, "
          "<QuantizationStrategy.TENSOR_GROUP: 'tensor_group'>, <QuantizationStrategy.GROUP: "
          "'group'>)")

# What the engine answers to these weights of a float-quantized group, asked by running it.
BAD_WEIGHTS: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "token"},
     "Cannot perform static token quantization, please use `dynamic=True`"),
    ({"group_size": 128}, "group_size requires strategy to be set to 'group'"),
    ({"strategy": "group"}, "strategy group requires group_size to be set to a positive value"),
    ({"strategy": "group", "group_size": -1},
     "strategy group requires group_size to be set to a positive value"),
    ({"strategy": "group", "group_size": 0},
     "strategy group requires group_size to be set to a positive value"),
    ({"dynamic": True}, f"One of {GROUPS} must be used for dynamic quant."),
    ({"strategy": "tensor", "dynamic": "local"},
     "local is only supported for strategy tensor_group"),
    ({"actorder": True}, "Must use group or tensor_group quantization strategy in order to apply "
                         "group activation ordering"),
    ({"type": "fp"}, "'fp' is not a valid QuantizationType"),
    ({"actorder": "nope"}, "'nope' is not a valid ActivationOrdering"),
]


@pytest.mark.parametrize("weights, words", BAD_WEIGHTS, ids=[str(w) for w, _ in BAD_WEIGHTS])
def test_arguments_that_contradict_each_other(weights: dict[str, Any], words: str) -> None:
    """The engine refuses them at "config fields", before any layer; here either in its words or as
    a checkpoint that contradicts itself. Never a scheme."""
    try:
        answer = ask(scheme("ct-fp8-dynamic", weights=weights))
    except CheckpointError:
        return
    assert answer.trace.error is not None
    assert (answer.trace.error.stage, answer.trace.error.message) == ("config fields", words)


@pytest.mark.parametrize("weights", [
    {"block_structure": [128, 128]}, {"strategy": "block"}, {"num_bits": 16}, {"num_bits": 0},
    {"observer": False}, {"observer_kwargs": 1}, {"observer_kwargs": None}, {"group_size": -2},
    {"strategy": "nope"}, {"num_bits": 8.0}, {"symmetric": "yes"}, {"dynamic": "sometimes"},
    {"foo": 1}, {"block_structure": [0, 0], "strategy": "block"},
    {"block_structure": [-128, 128], "strategy": "block"},
    {"block_structure": [128], "strategy": "block"},
    {"block_structure": [128.5, 128], "strategy": "block"}], ids=str)
def test_arguments_that_mean_nothing(weights: dict[str, Any]) -> None:
    """The engine's validators refuse each of these; so must we, in whatever way, but never answer
    as if they were something else."""
    try:
        answer = ask(scheme("ct-fp8-dynamic", weights=weights))
    except CheckpointError as error:
        assert "weights" in str(error)
        return
    assert answer.trace.outcome == "error"


@pytest.mark.parametrize("groups", [[], "x", 3, {"group_0": 3}, {"group_0": {}},
                                    {"group_0": {"targets": "Linear"}},
                                    {"group_0": {"targets": ["Linear"], "weights": None}},
                                    {"group_0": {"targets": [3], "weights": {}}},
                                    {"group_0": {"targets": [["Linear"]], "weights": {}}},
                                    {"group_0": {"targets": ["Linear"], "weights": 8}}], ids=str)
def test_groups_of_another_shape_are_named(groups: Any) -> None:
    with pytest.raises(CheckpointError, match="config_groups"):
        ask(quantization("ct-fp8-dynamic", config_groups=groups))


@pytest.mark.parametrize("value", ["fp8", 8, [], [8]])
def test_a_kv_scheme_of_another_type_is_named(value: Any) -> None:
    with pytest.raises(CheckpointError, match="kv_cache_scheme"):
        ask(quantization("ct-fp8-dynamic", kv_cache_scheme=value))


@pytest.mark.parametrize("value", [3, ["float-quantized"], {"a": 1}])
def test_a_format_of_another_type_is_named(value: Any) -> None:
    with pytest.raises(CheckpointError, match="format"):
        ask(quantization("ct-fp8-dynamic", format=value))


def test_sparsity_with_targets_is_refused() -> None:
    """_parse_sparsity_config raises a DeprecationWarning; the oracle answers the same."""
    answer = ask(quantization("ct-fp8-dynamic", sparsity_config={
        "format": "sparse-24-bitmask", "targets": ["Linear"]}))
    error = answer.trace.error
    assert error is not None
    assert (error.stage, error.type) == ("config fields", "DeprecationWarning")
    assert error.message == ("Sparsity support has been removed from compressed-tensors. Please "
                             "use a model without sparsity configuration.")
    for sparsity in (None, {}, {"format": "dense", "targets": []}):
        quant = quantization("ct-fp8-dynamic", sparsity_config=sparsity)
        assert ask(quant).trace.outcome == "ok"


def test_static_and_weight_ordering_cost_nothing() -> None:
    """Row llama8b/ct-w4a16-actweight: weight ordering leaves no g_idx."""
    plain = ask("ct-w4a16").to_dict()["layers"]
    for ordering in ("weight", "static"):
        answer = ask(scheme("ct-w4a16", weights={"actorder": ordering}))
        assert answer.to_dict()["layers"] == plain
