"""MXFP8 on SGLang 0.5.22, and block FP8 whose blocks are MXFP8 operands: answers that the engine
gave beside those of tests/golden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.dispatch.test_sglang_nvfp4 import QKV, ask

MXFP8: Mapping[str, Any] = {"quant_method": "mxfp8", "activation_scheme": "dynamic",
                            "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}
BLOCK32: Mapping[str, Any] = {**MXFP8, "quant_method": "fp8", "weight_block_size": [32, 32]}
FLASHINFER = "flashinfer_mxfp8_blockscaled_linear"
DOWN = "model.layers.*.mlp.down_proj"


def layer(path: str, config: Mapping[str, Any] | None, capability: int, **options: Any
          ) -> tuple[Any, ...]:
    """Return kernel, its backend and activations of a layer."""
    found = next(x for x in ask(config, capability, **options)["layers"] if x["path"] == path)
    return found["kernel"], found.get("kernel_backend"), found["act"]


@pytest.mark.parametrize("config, options, found", [
    ({"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]}, {},
     (FLASHINFER, "cute-dsl", "mxfp8_in_kernel")),
    ({**MXFP8, "weight_block_size": [128, 128]}, {}, (FLASHINFER, "cute-dsl", "mxfp8_in_kernel")),
    (MXFP8, {"env": {"SGLANG_FORCE_FP8_MARLIN": "1"}}, ("apply_fp8_marlin_linear", None, "none")),
    (MXFP8, {"fp8_gemm_backend": "deep_gemm"}, ("w8a8_mxfp8_matmul_deepgemm", None, "group")),
    (MXFP8, {"fp8_gemm_backend": "deep_gemm", "sizes": {"intermediate_size": 14368}},
     (FLASHINFER, "cutlass", "mxfp8_in_kernel")),
])
def test_mxfp8_on_10_0(config: Mapping[str, Any], options: dict[str, Any], found: Any) -> None:
    assert layer(DOWN, config, 100, **options) == found


@pytest.mark.parametrize("capability, backend, found", [
    (90, "deep_gemm", ("w8a8_block_fp8_matmul_deepgemm", None, "group")),
    (90, "flashinfer_cutlass", ("w8a8_block_fp8_matmul_triton", None, "group")),
    (100, "deep_gemm", ("w8a8_block_fp8_matmul_triton", None, "group")),
    (100, "flashinfer_cutedsl", (FLASHINFER, "cute-dsl", "mxfp8_in_kernel")),
    (120, "flashinfer_cutlass", (FLASHINFER, "cutlass", "mxfp8_in_kernel")),
])
def test_blocks_of_32_columns(capability: int, backend: str, found: Any) -> None:
    assert layer(QKV, BLOCK32, capability, fp8_gemm_backend=backend) == found


def test_the_cute_dsl_is_refused_on_other_blackwells() -> None:
    error = ask(BLOCK32, 120, fp8_gemm_backend="flashinfer_cutedsl")["error"]
    assert (error["type"], error["message"]) == (
        "RuntimeError", "MXFP8 dense GEMM requested via --fp8-gemm-backend=flashinfer_cutedsl, but "
        "that kernel requires an SM100/SM103 GPU and FlashInfer.")


def test_deep_gemm_has_to_be_there() -> None:
    error = ask(MXFP8, 100, fp8_gemm_backend="deep_gemm",
                env={"SGLANG_ENABLE_JIT_DEEPGEMM": "0"})["error"]
    assert error["message"] == (
        "MXFP8 dense GEMM requested via --fp8-gemm-backend=deep_gemm, but DeepGEMM is not "
        "available (package missing or SGLANG_ENABLE_JIT_DEEPGEMM=0).")


def test_no_side_file_is_read() -> None:
    """A checkpoint whose MXFP8 stands in hf_quant_config.json alone is quantized while loading:
    what the file says of the KV cache is not read (get_quant_config)."""
    side = {"quantization": {"quant_algo": "MXFP8", "kv_cache_quant_algo": "FP8"}}
    answer = ask(None, 100, side_files={"hf_quant_config.json": side})
    assert (answer["method"]["resolved"], answer["kv_cache"]["resolved"]) == ("mxfp8", "bfloat16")
