"""Integer, Humming and microscaled kernels of vLLM 0.32.0: groups, modes and what is refused. Where
no symbol is named, the answer is that of the engine's own code for an emulated GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import ask, found, kernels, message, only, quantization, scheme, starts
from quantplan.dispatch.trace import Finding
from quantplan.tables.errors import CheckpointError

from quantplan import Explanation

QKV = "model.layers.0.self_attn.qkv_proj"
ONLY_HUMMING = ("MarlinLinearKernel,MacheteLinearKernel,TritonW4A16LinearKernel,"
                "ExllamaLinearKernel")
SM89 = ("Marlin W4A8-FP8 only support SM89 or SM12x device (It is slower than Marlin W4A16 on "
        "other devices). You can consider using W4A8-INT8 instead(set "
        "VLLM_MARLIN_INPUT_DTYPE=int8).")


def first(answer: Explanation) -> tuple[str | None, str | None]:
    """Return kernel and mode of every linear layer, which must be one answer."""
    assert answer.trace.error is None, answer.trace.error
    (row,) = {(x.kernel, x.mode) for x in answer.trace.layers
              if x.kernel and x.module != "Attention"}
    return row


# Machete's groups: utils/machete_utils.py:query_machete_supported_group_sizes.


@pytest.mark.parametrize("group, dtype, chosen", [
    (64, "float32", ("MarlinLinearKernel", "W4A32")),
    (128, "float32", ("MacheteLinearKernel", "W4A32")),
    (64, "bfloat16", ("MacheteLinearKernel", "W4A16")),
    (128, "bfloat16", ("MacheteLinearKernel", "W4A16"))])
def test_machete_takes_groups_of_64_with_16_bits_only(
    group: int, dtype: str, chosen: tuple[str, str]
) -> None:
    quant = scheme("ct-w4a16", weights={"group_size": group})
    assert first(ask(quant, "9.0", dtype=dtype, libs={"humming": False})) == chosen


@pytest.mark.parametrize("group, chosen", [(64, "MarlinLinearKernel"),
                                           (128, "MacheteLinearKernel")])
def test_machete_s_groups_with_int8_activations(group: int, chosen: str) -> None:
    quant = quantization("gptq4-g128", group_size=group)
    answer = ask(quant, "9.0", env={"VLLM_MARLIN_INPUT_DTYPE": "int8"}, libs={"humming": False})
    assert first(answer) == (chosen, "W4A8_int8")


@pytest.mark.parametrize("dtype, groups", [("float32", "[-1, 128]"), ("float16", "[-1, 64, 128]")])
def test_machete_alone_says_which_groups_it_takes(dtype: str, groups: str) -> None:
    quant = scheme("ct-w4a16", weights={"group_size": 256})
    assert message(ask(quant, "9.0", dtype=dtype, linear_backend="machete")) == (
        "Failed to find a kernel that can implement the WNA16 linear layer. Reasons: \n"
        " MacheteLinearKernel cannot implement due to: Group size (256) not supported by Machete, "
        f"supported group sizes are: {groups}")


# Humming's modes under VLLM_MARLIN_INPUT_DTYPE: the humming package's own input schema.


@pytest.mark.parametrize("bits, group, asked, modes", [
    (4, -1, "int8", {"8.9": "W4A8_int8", "9.0": "W4A8_int8", "10.0": "W4A16", "12.0": "W4A8_int8"}),
    (4, -1, "fp8", {"8.9": "W4A8_float8e4m3", "12.0": "W4A8_float8e4m3"}),
    (4, 128, "int8", dict.fromkeys(("8.9", "9.0", "10.0", "12.0"), "W4A16")),
    (4, 128, "fp8", {"8.9": "W4A16", "12.0": "W4A16"}),
    (8, -1, "int8", {"8.9": "W8A8_int8", "9.0": "W8A8_int8", "10.0": "W8A16", "12.0": "W8A8_int8"}),
    (8, -1, "fp8", {"8.9": "W8A8_int8", "12.0": "W8A8_int8"}),
    (8, 128, "int8", dict.fromkeys(("8.9", "9.0", "10.0", "12.0"), "W8A16")),
    (8, 128, "fp8", {"8.9": "W8A8_int8", "12.0": "W8A8_int8"}),
    (4, -1, None, dict.fromkeys(("8.9", "9.0", "10.0", "12.0"), "W4A16")),
    (8, 128, None, dict.fromkeys(("8.9", "9.0", "10.0", "12.0"), "W8A16"))])
def test_humming_s_mode(bits: int, group: int, asked: str | None, modes: dict[str, str]) -> None:
    quant = quantization("gptq4-g128", bits=bits, group_size=group)
    env = {"VLLM_DISABLED_KERNELS": ONLY_HUMMING}
    env |= {"VLLM_MARLIN_INPUT_DTYPE": asked} if asked else {}
    assert {capability: first(ask(quant, capability, env=env)) for capability in modes} == {
        capability: ("HummingLinearKernel", mode) for capability, mode in modes.items()}


@pytest.mark.parametrize("capability", ["8.0", "9.0", "10.0"])
@pytest.mark.parametrize("bits, group", [(4, -1), (4, 128), (8, -1), (8, 128)])
def test_fp8_activations_are_for_8_9_and_12(capability: str, bits: int, group: int) -> None:
    """marlin_utils.py:get_marlin_input_dtype, whatever kernel would be selected."""
    quant = quantization("gptq4-g128", bits=bits, group_size=group)
    error = ask(quant, capability, env={"VLLM_DISABLED_KERNELS": ONLY_HUMMING,
                                        "VLLM_MARLIN_INPUT_DTYPE": "fp8"}).trace.error
    assert error is not None
    assert (error.type, error.message, error.layer) == ("ValueError", SM89, QKV)


@pytest.mark.parametrize("capability, mode", [
    ("8.0", "W4A8_int8"), ("8.7", "W4A8_int8"), ("8.8", "W4A8_int8"), ("8.9", "W4A8_float8e4m3"),
    ("9.0", "W4A8_float8e4m3"), ("10.0", "W4A16"), ("12.0", "W4A4_float4e2m1")])
def test_humming_s_mode_for_mxfp4(capability: str, mode: str) -> None:
    """Weight-only MXFP4; 8.8 is served as its neighbours."""
    answer = ask("ct-mxfp4a16", capability, linear_backend="humming")
    assert first(answer) == ("HummingMxFp4LinearKernel", mode)


# Humming and float32.


@pytest.mark.parametrize("group, capability, options", [
    (64, "9.0", {}), (256, "8.0", {}), (128, "9.0", {"linear_backend": "humming"})])
def test_humming_cannot_load_float32(
    group: int, capability: str, options: dict[str, Any]
) -> None:
    """Selection accepts it; humming/schema.py then fails with an AssertionError."""
    quant = scheme("ct-w4a16", weights={"group_size": group})
    answer = ask(quant, capability, dtype="float32", **options)
    assert (answer.trace.outcome, starts(answer)) == ("ok", "no")
    assert only(answer, "humming-float32") == Finding(
        "weight loading", "error", "humming-float32",
        "HummingLinearKernel is selected, but it prepares weights for float16 or bfloat16 only",
        "Pass --dtype bfloat16 or float16.",
        "model_executor/kernels/linear/mixed_precision/humming.py; humming/schema.py")


@pytest.mark.parametrize("group, dtype, options", [
    (64, "bfloat16", {"linear_backend": "humming"}), (64, "float16", {"linear_backend": "humming"}),
    (128, "float32", {}), (64, "float32", {"libs": {"humming": False}})])
def test_other_dtypes_and_kernels_load(group: int, dtype: str, options: dict[str, Any]) -> None:
    quant = scheme("ct-w4a16", weights={"group_size": group})
    answer = ask(quant, "9.0", dtype=dtype, **options)
    assert found(answer, "humming-float32") == []
    assert starts(answer) == "yes"


# GPTQ's dynamic rules: gptq_utils.py:override_config.


def test_a_dynamic_sym_that_is_no_flag_is_ignored() -> None:
    """override_config takes sym only where it is a bool; 0 is none."""
    quant = quantization("gptq4-g128", dynamic={"+:.*": {"sym": 0}})
    assert first(ask(quant, "8.9")) == ("MarlinLinearKernel", "W4A16")


def test_a_dynamic_sym_that_is_false_is_refused() -> None:
    quant = quantization("gptq4-g128", dynamic={"+:.*": {"sym": False}})
    error = ask(quant, "8.9").trace.error
    assert error is not None
    assert (error.type, error.message, error.layer) == (
        "ValueError", "Unsupported quantization config: bits=4, sym=False", QKV)


def test_a_dynamic_sym_that_is_text_is_not_believed() -> None:
    quant = quantization("gptq4-g128", dynamic={"+:.*": {"sym": "no"}})
    with pytest.raises(CheckpointError, match=r"sym; wanted true or false; found 'no'$"):
        ask(quant, "8.9")


# MXFP8 while loading: online/mxfp8.py:Mxfp8OnlineLinearMethod.create_weights.


@pytest.mark.parametrize("capability, size, tp, k", [
    ("8.0", 14352, 1, 14352), ("8.9", 14352, 1, 14352), ("10.0", 14352, 1, 14352),
    ("8.9", 14464, 8, 1808)])
def test_mxfp8_checks_its_groups(capability: str, size: int, tp: int, k: int) -> None:
    model = {**ask(None).checkpoint.config, "intermediate_size": size}
    error = ask(None, capability, model=model, tp=tp, quantization="mxfp8").trace.error
    assert error is not None
    assert (error.stage, error.type, error.layer) == (
        "shapes under TP", "ValueError", "model.layers.0.mlp.down_proj")
    assert error.message == (
        f"MXFP8 requires input_size_per_partition ({k}) to be divisible by 32.")


def test_mxfp8_checks_its_groups_before_it_selects() -> None:
    """Without the two kernels that take any K the refusal is still about the groups."""
    model = {**ask(None).checkpoint.config, "intermediate_size": 14352}
    disabled = "EmulationMxfp8LinearKernel,HummingMxfp8LinearKernel"
    answer = ask(None, "8.9", model=model, quantization="mxfp8",
                 env={"VLLM_DISABLED_KERNELS": disabled})
    assert message(answer) == (
        "MXFP8 requires input_size_per_partition (14352) to be divisible by 32.")


# Libraries and transforms.


@pytest.mark.parametrize("quant, chosen", [
    ("ct-mxfp8", ("FlashInferCutedslMxfp8LinearKernel", "W8A8_mxfp8")),
    ("ct-mxfp4", ("FlashInferMxFp4LinearKernel", "W4A4_mxfp4")),
    ("fp8-static", ("FlashInferFP8ScaledMMLinearKernel", "W8A8_fp8")),
    ("fp8-block128", ("DeepGemmFp8BlockScaledMMKernel", "W8A8_fp8"))])
def test_cutedsl_changes_no_choice(quant: str, chosen: tuple[str, str]) -> None:
    """utils/flashinfer.py:has_flashinfer_cutedsl asks for flashinfer.cute_dsl, not for the DSL."""
    on, off = (ask(quant, "10.0", libs={"cutedsl": state}) for state in (True, False))
    assert first(on) == first(off) == chosen
    assert kernels(on) == kernels(off)


@pytest.mark.parametrize("none", [None, {}])
def test_no_transform(none: Any) -> None:
    answer = ask(quantization("ct-fp8-w8a16", transform_config=none), "8.9")
    assert first(answer) == ("HummingFP8ScaledMMLinearKernel", "W8A16_fp8")
