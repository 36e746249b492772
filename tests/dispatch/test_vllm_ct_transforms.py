"""transform_config of compressed-tensors; the answers are those of the engine's own code
(compressed_tensors/transform/linear.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import ask, quantization
from quantplan.tables.errors import CheckpointError

from quantplan import Explanation

QKV, DOWN = "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.down_proj"


FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
NVFP4 = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": [],
         "config_groups": {"group_0": {"targets": ["Linear"], "weights": FP4,
                                       "input_activations": {**FP4, "dynamic": "local"}}}}


def rotated(*applied: tuple[Any, str], quant: Any = "ct-w4a16", capability: str = "8.9",
            **options: Any) -> Explanation:
    """Return our answer with one transform scheme per (targets, location)."""
    scheme = {"type": "hadamard", "head_dim": options.pop("head_dim", None)}
    groups = {f"R{n}": {**scheme, "apply": [{"targets": targets, "location": location}]}
              for n, (targets, location) in enumerate(applied)}
    config = quantization(quant) if isinstance(quant, str) else quant
    return ask({**config, "transform_config": {"config_groups": groups}}, capability, **options)


def methods(answer: Explanation) -> dict[str, str | None]:
    return {layer.path.removeprefix("model.layers.0."): layer.method
            for layer in answer.trace.layers if layer.layer_index == 0 and layer.k}


PLAIN, ROTATED = "CompressedTensorsLinearMethod", "CompressedTensorsLinearTransformMethod"


@pytest.mark.parametrize("targets, location, wrapped", [
    (["Linear"], "input", {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
                           "mlp.down_proj"}),
    ("Linear", "output", {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
                          "mlp.down_proj"}),
    (["ColumnParallelLinear"], "input", {"self_attn.qkv_proj", "mlp.gate_up_proj"}),
    (["RowParallelLinear"], "output", {"self_attn.o_proj", "mlp.down_proj"}),
    (["re:.*q_proj"], "output", {"self_attn.qkv_proj"}),
    (["re:.*[qkv]_proj"], "input", {"self_attn.qkv_proj"}),
    ([DOWN], "input", {"mlp.down_proj"}),
    (["Linear"], "weight_input", set()), (["lm_head"], "input", set()),
    (["re:.*self_attn$"], "k_cache", set())])
def test_the_layers_that_are_rotated(targets: Any, location: str, wrapped: set[str]) -> None:
    """Offline locations leave nothing to do; lm_head is never wrapped."""
    found = methods(rotated((targets, location)))
    assert {path for path, method in found.items() if method == ROTATED} == wrapped
    assert set(found.values()) <= {PLAIN, ROTATED}


@pytest.mark.parametrize("applied, error", [
    ([(["re:.*q_proj"], "input")], ("KeyError", "1")),
    ([(["re:.*k_proj"], "input")], ("ValueError", "Must have same input")),
    ([(["Linear"], "input"), (["re:.*up_proj"], "input")], ("ValueError", "Must have same input")),
    ([(["re:.*q_proj"], "output"), (["re:.*k_proj"], "output")],
     ("ValueError", "Must have same scheme name")),
    ([(["Linear"], "k_cache")],
     ("ValueError", f"Cannot apply `k_cache` transform to `{QKV}`"))])
def test_what_a_fused_layer_refuses(
    applied: list[tuple[Any, str]], error: tuple[str, str]
) -> None:
    found = rotated(*applied).trace.error
    assert found is not None
    assert (found.type, found.message) == error


def test_tensor_parallelism_is_refused() -> None:
    found = rotated((["Linear"], "input"), tp=2).trace.error
    assert found is not None
    assert (found.type, found.message, found.layer) == (
        "NotImplementedError", "Online transforms with tensor parallelism is not supported", QKV)


def test_the_capability_of_the_scheme_comes_first() -> None:
    """MXFP4 chooses its kernel and checks the GPU before any weight is made."""
    found = rotated((["re:.*q_proj"], "input"), quant="ct-mxfp4a16", capability="7.5",
                    dtype="float16").trace.error
    assert found is not None
    assert found.message.endswith("Min capability: 80. Current capability: 75.")


@pytest.mark.parametrize("head_dim, capability, method", [
    (128, "10.0", "QutlassNvFP4LinearMethod"), (16, "12.0", "QutlassNvFP4LinearMethod"),
    (256, "10.0", ROTATED), (None, "10.0", ROTATED), (128, "9.0", ROTATED)])
def test_nvfp4_rotations_in_blocks_are_fused(
    head_dim: int | None, capability: str, method: str
) -> None:
    """linear_qutlass_nvfp4.py:is_qutlass_fp4_scheme."""
    answer = rotated((["Linear"], "input"), quant=NVFP4, capability=capability,
                     head_dim=head_dim)
    assert set(methods(answer).values()) == {method}


@pytest.mark.parametrize("config", [
    {"config_groups": 1}, {"config_groups": {"R1": {}}},
    {"config_groups": {"R1": {"type": "hadamard", "apply": [{"targets": ["Linear"]}]}}},
    {"config_groups": {"R1": {"type": "hadamard", "apply": [
        {"targets": [1], "location": "input"}]}}},
    {"config_groups": {"R1": {"type": "hadamard", "head_dim": "128", "apply": []}}}])
def test_what_is_no_transform_config(config: Any) -> None:
    with pytest.raises(CheckpointError, match="transform_config"):
        ask(quantization("ct-w4a16", transform_config=config), "8.9")
