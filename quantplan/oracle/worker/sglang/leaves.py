"""The engine's own functions around compiled kernels, replaced by what notes them.

Only the last call of a path is replaced: every branch that decides between them is the engine's.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from quantplan.oracle.worker.sglang import shapes
from quantplan.oracle.worker.sglang.record import ACTIVATION, RECORD

PRODUCTS = (
    "fp8_scaled_mm", "triton_scaled_mm", "w8a8_block_fp8_matmul_deepgemm",
    "w8a8_block_fp8_matmul_triton", "fp8_blockwise_scaled_mm", "gemm_fp8_nt_groupwise",
    "_raw_gemm_fp8_nt_groupwise", "fp8_blockscale_gemm_sm90", "flashinfer_bmm_fp8", "bmm_fp8",
    "flashinfer_mm_mxfp8", "_raw_flashinfer_mm_mxfp8", "_flashinfer_mm_mxfp8_impl",
    "flashinfer_mxfp8_blockscaled_linear", "w8a8_mxfp8_matmul_deepgemm", "gptq_marlin_gemm",
    "awq_dequantize", "awq_gemm", "int8_scaled_mm", "w8a8_block_int8_matmul",
    "cutlass_scaled_fp4_mm", "apply_fp4_marlin_linear", "mm_fp4", "fp4_gemm", "flashinfer_mm_fp4",
    "matmul_4bit", "bnb_matmul", "ggml_mul_mat_a8", "ggml_mul_mat_vec_a8", "ggml_dequantize",
    "apply_petit_nvfp4_linear", "humming_gemm")
"""Matrix products, and what stands in front of torch's: the operator that a layer calls."""

QUANTIZERS: Mapping[str, tuple[str | None, Callable[..., Any]]] = {
    **dict.fromkeys(("per_token_quant_fp8", "sglang_per_token_quant_fp8"),
                    ("per_token", shapes.per_token)),
    **dict.fromkeys(("per_token_group_quant_fp8", "sglang_per_token_group_quant_fp8",
                     "sglang_per_token_group_quant_fp8_row_padded"), ("group", shapes.per_group)),
    "per_token_quant_int8": ("per_token", shapes.per_token_int8),
    "per_token_group_quant_int8": ("group", shapes.per_token_int8),
    "static_quant_fp8": ("static", shapes.static),
    "scaled_fp8_quant": (None, shapes.scaled),
    **dict.fromkeys(("fp4_quantize", "scaled_fp4_quant"), ("fp4", shapes.fp4_pair)),
}
"""Quantizations of activations: how they scale (None: their arguments say it), what they return."""

PREPARATIONS: Mapping[str, Callable[..., Any]] = {
    "mxfp8_group_quantize": shapes.mxfp8_group,
    **dict.fromkeys(("gptq_marlin_repack", "awq_marlin_repack"), shapes.repacked),
    **dict.fromkeys(("gptq_marlin_moe_repack", "awq_marlin_moe_repack",
                     "awq_to_marlin_zero_points", "moe_awq_to_marlin_zero_points"), shapes.same),
    "unpack_cols": shapes.unpacked, "pack_cols": shapes.packed,
    "requantize_with_max_scale": shapes.one_scale, "all_close_1d": shapes.alike,
}
"""Conversions of weights."""

MXFP8_GPUS: Mapping[str, tuple[int, ...]] = {
    "cutlass": (100, 103, 107, 110, 120, 121), "trtllm": (100, 103, 107),
    "cute-dsl": (100, 103, 107)}
"""Backend -> the GPUs that mm_mxfp8 of FlashInfer 0.7.1 serves; a selection asks for it."""


class Leaves:
    """The replacements, put into each module of the engine once."""

    def __init__(self) -> None:
        self._done: set[str] = set()
        self._leaves: dict[str, Any] = {
            **{name: _product(name) for name in PRODUCTS},
            **{name: _quantizer(act, compute) for name, (act, compute) in QUANTIZERS.items()},
            **{name: _preparation(compute) for name, compute in PREPARATIONS.items()}}

    def replace(self) -> None:
        """Replace them in the modules that were imported since."""
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] == "sglang" and name not in self._done and module is not None:
                self._done.add(name)
                self._replace_in(vars(module))

    def _replace_in(self, names: dict[str, Any]) -> None:
        for name in self._leaves.keys() & names.keys():
            if callable(names[name]) and not isinstance(names[name], types.ModuleType):
                names[name] = self._leaves[name]


def _product(name: str) -> Any:
    def product(*given: Any, **named: Any) -> Any:
        shapes.reached(name, given, named)
    leaf: Any = product
    leaf.__name__ = name
    leaf.is_backend_supported = lambda backend, capability: int(capability) in MXFP8_GPUS.get(
        backend, ())
    return leaf


def _quantizer(act: str | None, compute: Callable[..., Any]) -> Any:
    def quantizer(*given: Any, **named: Any) -> Any:
        if act is not None:
            RECORD.add(ACTIVATION, act)
        return compute(*given, **named)
    return quantizer


def _preparation(compute: Callable[..., Any]) -> Any:
    def preparation(*given: Any, **named: Any) -> Any:
        return compute(*given, **named)
    return preparation
