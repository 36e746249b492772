"""What vLLM 0.32.0 asks before it builds a layer, in its order: the heads, the config's fields, the
capability, the activation dtype."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, message, quantization
from quantplan.tables.errors import CheckpointError

from quantplan import Explanation, explain


def refused(answer: Explanation) -> tuple[str, str, str]:
    """Return stage, type and words of an answer that must be a refusal."""
    error = answer.trace.error
    assert error is not None
    return error.stage, error.type, error.message


@pytest.mark.parametrize("quant, capability, words", [
    ("fp8-dynamic", "7.0", "The quantization method fp8 is not supported for the current GPU. "
                           "Minimum capability: 75. Current capability: 70."),
    ("awq4-g128", "6.0", "The quantization method auto_awq is not supported for the current GPU. "
                         "Minimum capability: 75. Current capability: 60."),
    ("ct-fp8-dynamic", "6.0", "The quantization method compressed-tensors is not supported for the "
                              "current GPU. Minimum capability: 70. Current capability: 60.")])
def test_the_capability_gate(quant: str, capability: str, words: str) -> None:
    """Rows llama8b/QUANT/CAPABILITY."""
    answer = ask(quant, capability)
    assert refused(answer) == ("capability gate", "ValidationError", words)


def test_the_dtype_gate() -> None:
    """config/vllm.py:_get_quantization_config; the oracle's own words for float32 on fp8."""
    answer = ask("fp8-dynamic", "9.0", dtype="float32")
    assert refused(answer) == (
        "activation dtype", "ValidationError", "torch.float32 is not supported for quantization "
        "method fp8. Supported dtypes: [torch.bfloat16, torch.float16]")


def test_fields_come_before_the_gate() -> None:
    """Row llama8b/awq8/60: the constructor raises first."""
    assert refused(ask("awq8", "6.0"))[0] == "config fields"


def test_heads_come_before_the_config_class() -> None:
    answer = ask("awq8", "6.0", tp=3)
    assert refused(answer) == (
        "shapes under TP", "ValidationError",
        "Total number of attention heads (32) must be divisible by tensor parallel size (3).")


def test_the_name_comes_before_heads() -> None:
    assert refused(ask({"quant_method": "nope"}, tp=3))[0] == "method name"


@pytest.mark.parametrize("quant, words", [
    ("fp8-block-static", "The block-wise quantization only supports dynamic activation scheme for "
                         "now, but got static activation scheme."),
    ("awq8", "Unsupported num_bits = 8. Supported: 4. For 8-bit AWQ, use Marlin backend by setting "
             "backend='awq:marlin' or backend='marlin'."),
    ("gptq2", "Unsupported quantization config: bits=2, sym=True"),
    ("gptq4-asym", "Unsupported quantization config: bits=4, sym=False"),
    ("gptq4-desc", "GPTQ group activation ordering (desc_act=True) is no longer supported. Use a "
                   "checkpoint with static activation ordering or desc_act=False."),
    ("ct-w4a16-actorder", "Compressed-tensors group/dynamic activation ordering (actorder='group') "
                          "is no longer supported. Use a checkpoint with static/weight activation "
                          "ordering or without activation ordering.")])
def test_a_constructor_that_refuses(quant: str, words: str) -> None:
    """Rows llama8b/QUANT/CAPABILITY."""
    assert refused(ask(quant, "8.0")) == ("config fields", "ValidationError", words)


@pytest.mark.parametrize("quant", ["gptq4-desc", "ct-w4a16-actorder"])
def test_ordered_groups_name_the_version_that_serves_them(quant: str) -> None:
    error = ask(quant, "8.0").trace.error
    assert error is not None
    assert str(error.hint).endswith(" it, or serve it with vLLM 0.25.1." if quant.startswith("ct")
                                    else "desc_act=False, or serve it with vLLM 0.25.1.")
    served = explain({**LLAMA, "quantization_config": quantization(quant)}, capability="8.0",
                     engine_version="0.25.1")
    assert served.trace.error is None


@pytest.mark.parametrize("quant, gone, listed", [
    ("fp8-dynamic", "activation_scheme", "['activation_scheme']"),
    ("awq4-g128", "bits", "['w_bit', 'bits']"),
    ("awq4-g128", "group_size", "['q_group_size', 'group_size']"),
    ("awq4-g128", "zero_point", "['zero_point']"), ("gptq4-g128", "bits", "['bits']"),
    ("gptq4-g128", "group_size", "['group_size']"), ("gptq4-g128", "desc_act", "['desc_act']"),
    ("gptq4-g128", "sym", "['sym']")])
def test_a_missing_field(quant: str, gone: str, listed: str) -> None:
    """base_config.py:QuantizationConfig.get_from_keys."""
    config = quantization(quant)
    del config[gone]
    assert message(ask(config)) == (
        f"Cannot find any of {listed} in the model's quantization config.")


def test_awq_reads_its_old_field_names() -> None:
    """auto_awq.py: get_from_keys(config, ["w_bit", "bits"])."""
    old = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True}
    assert ask(old).to_dict()["layers"] == ask("awq4-g64").to_dict()["layers"]


def test_awq_without_a_word_on_zero_points_is_not_awq_without_them() -> None:
    """zero_point null is neither: the engine takes Marlin's path with a null."""
    try:
        answer = ask(quantization("awq4-g128", zero_point=None), "8.0")
    except CheckpointError as error:
        assert "zero_point" in str(error)
        return
    assert "AutoAWQLinearMethod" not in {layer.method for layer in answer.trace.layers}
