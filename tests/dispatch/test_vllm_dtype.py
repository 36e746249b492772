"""The activation dtype of vLLM 0.32.0: --dtype, the config, the headers, the GPU. Where no symbol
is named, the answer is that of the engine's own code for an emulated GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, found, only, starts, stored
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.trace import Finding
from quantplan.dispatch.vllm.dtype import own_dtype
from quantplan.tables.errors import CheckpointError, NotKnownError, UsageError

NO_DTYPE = {**LLAMA, "torch_dtype": None}
OTHER = ["float8_e4m3fn", "float8_e5m2", "float64", "double", "int8"]


def in_dtype(dtype: str, **changes: str) -> dict[str, str]:
    """Return headers of Llama-3.1-8B all of whose tensors are DTYPE, but for CHANGES by part of
    their name."""
    names = stored({"weight": dtype})
    return {name: next((d for part, d in changes.items() if part in name), dtype)
            for name in names}


# From the config.


@pytest.mark.parametrize("fields, dtype", [
    ({"torch_dtype": "bfloat16"}, "bfloat16"), ({"torch_dtype": "float16"}, "float16"),
    ({"torch_dtype": "torch.float16"}, "float16"), ({"torch_dtype": "float32"}, "bfloat16"),
    ({"torch_dtype": None, "dtype": "float16"}, "float16"),
    ({"torch_dtype": "bfloat16", "dtype": "float16"}, "float16")])
def test_the_config_s_dtype(fields: dict[str, Any], dtype: str) -> None:
    """config/model.py:_resolve_auto_dtype: a float32 model is computed in bfloat16."""
    assert ask(None, "8.9", model={**LLAMA, **fields}).trace.dtype == dtype


@pytest.mark.parametrize("own, text, vision, dtype", [
    ("float16", "bfloat16", None, "float16"), ("bfloat16", "float16", None, "bfloat16"),
    ("float32", "float16", None, "float32"), ("float16", None, None, "float16"),
    (None, "float16", "bfloat16", "float16"), (None, None, "float16", "float16"),
    (None, None, None, "float32")])
def test_a_wrapper_s_own_dtype_stands_before_its_parts(
    own: str | None, text: str | None, vision: str | None, dtype: str
) -> None:
    """model_arch_config_convertor.py:get_torch_dtype; AutoAWQ writes float16 into the root only."""
    wrapper = {"torch_dtype": own, "text_config": {"dtype": text},
               "vision_config": {"torch_dtype": vision}}
    assert own_dtype(Checkpoint("wrapper", "mapping", wrapper)) == dtype


@pytest.mark.parametrize("capability, dtype", [("7.5", "float16"), ("8.9", "bfloat16")])
@pytest.mark.parametrize("name", OTHER)
def test_a_dtype_that_no_model_is_computed_in_falls_back(
    name: str, capability: str, dtype: str
) -> None:
    assert ask(None, capability, model={**LLAMA, "torch_dtype": name}).trace.dtype == dtype


@pytest.mark.parametrize("name", ["banana", "", " bfloat16", "BFLOAT16"])
def test_a_name_that_torch_does_not_have(name: str) -> None:
    """The engine ends with "module 'torch' has no attribute 'banana'", or ''."""
    with pytest.raises(CheckpointError) as raised:
        ask(None, "8.9", model={**LLAMA, "torch_dtype": name})
    assert str(raised.value) == f"config.json: torch_dtype; wanted a torch dtype; found {name!r}"


# From the headers: model_arch_config_convertor.py:get_torch_dtype.


@pytest.mark.parametrize("stored_as, capability, dtype", [
    ("F16", "7.5", "float16"), ("F16", "8.9", "float16"), ("BF16", "7.5", "float16"),
    ("BF16", "8.9", "bfloat16"), ("F32", "7.5", "float16"), ("F32", "8.9", "bfloat16")])
def test_the_headers_dtype(stored_as: str, capability: str, dtype: str) -> None:
    answer = ask(None, capability, model=NO_DTYPE, tensors=in_dtype(stored_as))
    assert answer.trace.dtype == dtype


@pytest.mark.parametrize("dtype, changes, wanted", [
    ("BF16", {"lm_head": "F32"}, "bfloat16"), ("F16", {"lm_head": "F32"}, "bfloat16"),
    ("F8_E4M3", {}, "bfloat16"), ("BF16", {"proj": "F8_E4M3"}, "bfloat16"),
    ("F16", {"proj": "F8_E4M3"}, "float16"),
    ("F16", {"proj": "I32"}, "float16")])
def test_the_headers_widest_dtype(dtype: str, changes: dict[str, str], wanted: str) -> None:
    """common_broadcastable_dtype: what every tensor can be cast to; I32 does not count."""
    answer = ask(None, "8.9", model=NO_DTYPE, tensors=in_dtype(dtype, **changes))
    assert answer.trace.dtype == wanted


def test_no_config_dtype_and_no_headers_is_float32() -> None:
    """get_torch_dtype's last resort, which _resolve_auto_dtype then narrows."""
    for capability, dtype in (("7.5", "float16"), ("8.9", "bfloat16")):
        assert ask(None, capability, model=NO_DTYPE).trace.dtype == dtype


@pytest.mark.parametrize("tensors, listed", [
    (in_dtype("F16", lm_head="BF16"), "BF16, F16")])
def test_headers_without_one_answer_are_not_guessed(
    tensors: dict[str, str], listed: str
) -> None:
    with pytest.raises(NotKnownError) as raised:
        ask(None, "8.9", model=NO_DTYPE, tensors=tensors)
    assert str(raised.value) == (
        f"the dtype of a config without torch_dtype, from tensors of {listed}. Pass --dtype.")
    assert ask(None, "8.9", model=NO_DTYPE, tensors=tensors, dtype="float16"
               ).trace.dtype == "float16"


# --dtype.


@pytest.mark.parametrize("name, dtype", [
    ("half", "float16"), ("float16", "float16"), ("fp16", "float16"), ("bfloat16", "bfloat16"),
    ("bf16", "bfloat16"), ("float", "float32"), ("float32", "float32"), ("fp32", "float32")])
def test_the_flag_goes_before_the_config(name: str, dtype: str) -> None:
    """config/model.py:_STR_DTYPE_TO_TORCH_DTYPE, plus the short forms."""
    assert ask(None, "8.9", dtype=name).trace.dtype == dtype


def test_a_flag_that_is_no_choice() -> None:
    with pytest.raises(UsageError) as raised:
        ask(None, "8.9", dtype="int8")
    assert str(raised.value) == ("--dtype int8; wanted auto, half, float16, float, float32, "
                                 "bfloat16, fp16, bf16, fp32")


# float16 in place of bfloat16.


def test_float16_in_place_of_bfloat16_is_said() -> None:
    answer = ask("awq4-g128", "7.5")
    assert (answer.trace.dtype, starts(answer)) == ("float16", "yes")
    assert only(answer, "float16-fallback") == Finding(
        "activation dtype", "warning", "float16-fallback",
        "the checkpoint is bfloat16, which needs 8.0; on 7.5 the engine falls back to float16, "
        "whose range ends at 65504",
        "Watch for NaN or garbage; use a GPU of 8.0 or newer for bfloat16.",
        "config/model.py:_get_and_verify_dtype")


def test_the_headers_bfloat16_counts_as_well() -> None:
    answer = ask(None, "7.5", model=NO_DTYPE, tensors=in_dtype("BF16"))
    assert only(answer, "float16-fallback").severity == "warning"


@pytest.mark.parametrize("capability, model, options", [
    ("8.0", LLAMA, {}), ("9.0", LLAMA, {}), ("7.5", LLAMA, {"dtype": "float16"}),
    ("7.5", LLAMA, {"dtype": "half"}), ("7.5", LLAMA, {"dtype": "bfloat16"}),
    ("7.5", {**LLAMA, "torch_dtype": "float16"}, {}),
    ("7.5", {**LLAMA, "torch_dtype": "float32"}, {}), ("7.5", NO_DTYPE, {})])
def test_no_fallback_elsewhere(
    capability: str, model: dict[str, Any], options: dict[str, Any]
) -> None:
    assert found(ask(None, capability, model=model, **options), "float16-fallback") == []
