"""The checkpoint's headers against the plan: what is stored otherwise, and scales that are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import AWQ_PARTS, FP8_PARTS, ask, found, only, quantization, starts, stored

DOWN = "model.layers.0.mlp.down_proj"


# The headers.


def test_headers_that_agree_find_nothing() -> None:
    answer = ask("fp8-dynamic", "8.9", tensors=stored(FP8_PARTS))
    assert [f.id for f in answer.trace.findings if f.severity != "info"] == []
    assert starts(answer) == "yes"


def test_a_layer_that_is_stored_in_16_bits() -> None:
    answer = ask("fp8-dynamic", "8.9", tensors=stored(FP8_PARTS, "down_proj"))
    finding = only(answer, "stored-unquantized")
    assert (finding.stage, finding.severity) == ("weight loading", "error")
    assert finding.message == (f"{DOWN} and 1 more layers are planned as quantized but stored in "
                               "16 bits: loading fails, or the weights are read wrongly")
    assert starts(answer) == "no"
    named = quantization("fp8-dynamic", ignored_layers=[
        f"model.layers.{i}.mlp.down_proj" for i in range(2)])
    assert found(ask(named, "8.9", tensors=stored(FP8_PARTS, "down_proj")),
                 "stored-unquantized") == []


@pytest.mark.parametrize("leaf", ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"])
def test_one_leaf_of_a_fused_layer_that_is_stored_in_16_bits(leaf: str) -> None:
    """Any leaf, not only the first: the fused parameter is FP8."""
    answer = ask("fp8-dynamic", "8.9", tensors=stored(FP8_PARTS, leaf))
    assert only(answer, "stored-unquantized").severity == "error"


def test_a_single_layer_is_told_in_the_singular() -> None:
    answer = ask("fp8-dynamic", "8.9", tensors=stored(FP8_PARTS, "layers.1.mlp.down_proj"))
    assert only(answer, "stored-unquantized").message.startswith(
        "model.layers.1.mlp.down_proj is planned")


def test_a_quantized_checkpoint_without_its_config() -> None:
    for parts in (FP8_PARTS, AWQ_PARTS):
        answer = ask(None, "8.9", tensors=stored(parts))
        finding = only(answer, "stored-quantized")
        assert (finding.stage, finding.severity) == ("weight loading", "error")
        assert finding.message == (
            "model.layers.0.self_attn.qkv_proj and 7 more layers are planned as 16-bit but stored "
            "quantized: the engine has no parameter for those tensors")
        assert starts(answer) == "no"


def test_an_ignore_list_that_ignores_too_much() -> None:
    quant = quantization("ct-fp8-dynamic", ignore=["lm_head", "re:.*down_proj"])
    finding = only(ask(quant, "8.9", tensors=stored(FP8_PARTS)), "stored-quantized")
    assert finding.message.startswith(f"{DOWN} and 1 more layers are planned as 16-bit")


def test_online_quantization_wants_16_bits() -> None:
    answer = ask(None, "8.9", quantization="fp8_per_tensor", tensors=stored({"weight": "BF16"}))
    assert [f.id for f in answer.trace.findings if f.severity != "info"] == []
