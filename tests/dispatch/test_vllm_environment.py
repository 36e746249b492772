"""Variables and libraries as vLLM 0.32.0 reads them (envs.py, utils/flashinfer.py). The errors are
the oracle's: the engine's own code under an emulated 9.0."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import ask
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import UsageError

QKV = "model.layers.0.self_attn.qkv_proj"
INT = "invalid literal for int() with base 10: "


def choice(name: str, value: str) -> str:
    """Return envs.py:env_with_choices's words."""
    choices = load_engine("vllm", "0.32.0")["environment"][name]["choices"]
    return f"Invalid value '{value}' for {name}. Valid options: {choices}."


@pytest.mark.parametrize(("quant", "name", "value", "layer", "message"), [
    ("fp8-block128", "VLLM_USE_DEEP_GEMM", "yes", QKV, INT + "'yes'"),
    ("fp8-block128", "VLLM_USE_DEEP_GEMM", "", QKV, INT + "''"),
    ("fp8-block128", "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER", "yes", QKV, INT + "'yes'"),
    (None, "VLLM_BATCH_INVARIANT", "yes", None, INT + "'yes'"),
    ("fp8-block128", "VLLM_BATCH_INVARIANT", "", None, INT + "''"),
    ("fp8-block128", "VLLM_MARLIN_INPUT_DTYPE", "", QKV, choice("VLLM_MARLIN_INPUT_DTYPE", "")),
    ("awq4-g128", "VLLM_MARLIN_INPUT_DTYPE", "FP8", QKV, choice("VLLM_MARLIN_INPUT_DTYPE", "FP8")),
])
def test_a_value_that_cannot_be_read_is_refused_where_it_is_read(
    quant: Any, name: str, value: str, layer: str | None, message: str
) -> None:
    error = ask(quant, env={name: value}).trace.error
    assert error is not None
    assert (error.type, error.message, error.layer) == ("ValueError", message, layer)


@pytest.mark.parametrize(("quant", "name", "value"), [
    (None, "VLLM_USE_DEEP_GEMM", "yes"), ("awq4-g128", "VLLM_USE_DEEP_GEMM", "yes"),
    ("fp8-block128", "VLLM_MOE_USE_DEEP_GEMM", "yes"), (None, "VLLM_MARLIN_INPUT_DTYPE", "FP8"),
    (None, "VLLM_GDN_DECODE_KERNEL", "foo"), (None, "VLLM_KV_CACHE_LAYOUT", "hnd"),
])
def test_a_value_that_nothing_reads_is_a_warning(quant: Any, name: str, value: str) -> None:
    trace = ask(quant, env={name: value}).trace
    assert trace.error is None
    told = next(f for f in trace.findings if f.id == "variable-unreadable")
    assert told.severity == "warning"
    assert told.message.startswith(f"{name}={value}: the engine raises ValueError")


def test_a_bad_variable_is_refused_after_the_method_name_and_before_the_heads() -> None:
    bad = {"VLLM_BATCH_INVARIANT": "x"}
    name = ask("awq4-g128", env=bad, quantization="fp8").trace.error
    heads = ask("awq4-g128", env=bad, tp=3).trace.error
    assert name is not None and name.message.startswith("Quantization method specified in the")
    assert heads is not None and heads.message == INT + "'x'"


@pytest.mark.parametrize(("value", "kernel"), [
    (" 1", "FlashInferFp8DeepGEMMDynamicBlockScaledKernel"),
    ("2", "FlashInferFp8DeepGEMMDynamicBlockScaledKernel"), ("0", "CutlassFp8BlockScaledMMKernel"),
])
def test_flags_are_whole_numbers(value: str, kernel: str) -> None:
    layer = ask("fp8-block128", env={"VLLM_USE_DEEP_GEMM": value}).trace.layers[1]
    assert (layer.path, layer.kernel) == (QKV, kernel)


def test_the_case_of_a_choice_matters_only_where_the_engine_minds_it() -> None:
    trace = ask(env={"VLLM_GDN_DECODE_KERNEL": "TRITON"}).trace
    assert "variable-unreadable" not in [f.id for f in trace.findings]


# FlashInfer: the package alone serves attention, its GEMMs also want compiled kernels or nvcc.


@pytest.mark.parametrize(("libs", "env", "gemm", "attention"), [
    ({}, {}, "FlashInferFP8ScaledMMLinearKernel", "FLASHINFER"),
    ({"flashinfer": True}, {}, "FlashInferFP8ScaledMMLinearKernel", "FLASHINFER"),
    ({"flashinfer": "installed"}, {}, "CutlassFP8ScaledMMLinearKernel", "FLASHINFER"),
    ({"flashinfer": "installed"}, {"VLLM_HAS_FLASHINFER_CUBIN": "1"},
     "FlashInferFP8ScaledMMLinearKernel", "FLASHINFER"),
    ({"flashinfer": False}, {}, "CutlassFP8ScaledMMLinearKernel", "FLASH_ATTN"),
    ({"flashinfer": False}, {"VLLM_HAS_FLASHINFER_CUBIN": "1"}, "CutlassFP8ScaledMMLinearKernel",
     "FLASH_ATTN"),
])
def test_installed_and_usable_are_two_facts(
    libs: dict[str, Any], env: dict[str, str], gemm: str, attention: str
) -> None:
    layers = ask("fp8-static", "10.0", libs=libs, env=env).trace.layers
    assert layers[1].kernel == gemm
    assert next(x.attn_backend for x in layers if x.module == "Attention") == attention


def test_a_library_without_that_state_refuses_it() -> None:
    with pytest.raises(UsageError, match="--lib humming=installed; wanted on, off or unknown"):
        ask("fp8-static", libs={"humming": "installed"})
