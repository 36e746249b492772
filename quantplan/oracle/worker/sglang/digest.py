"""What a layer computes, from the steps that it took: its operator, how activations are quantized,
and the mode."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from quantplan.oracle.worker.sglang.record import ACTIVATION, PRODUCT, Step

ACT_ORDER = ("static", "per_token", "per_tensor_dynamic", "group", "fp4")
IN_KERNEL: Sequence[tuple[str, str]] = (("mxfp8", "mxfp8_in_kernel"),
                                        ("fp8_blockscale_gemm_sm90", "group_in_kernel"))
"""Part of an operator's name -> how it quantizes activations itself."""

MODES: Sequence[tuple[str, str]] = (
    (r"apply_fp8_marlin_linear", "W8A16_fp8"), (r"apply_fp4_marlin_linear|mm_bf16_fp4",
                                               "W4A16_nvfp4"),
    (r".*mxfp8.*", "W8A8_mxfp8"), (r"awq_dequantize", "W4A16"),
    (r"int8_scaled_mm|w8a8_block_int8_matmul", "W8A8_int8"),
    (r"fp4_gemm|mm_fp4|flashinfer_mm_fp4|cutlass_scaled_fp4_mm", "W4A4_nvfp4"),
    (r"(triton|fp8|fp8_blockwise)_scaled_mm|w8a8_block_fp8_.*|(_raw_)?gemm_fp8_nt_groupwise|"
     r"(flashinfer_)?bmm_fp8|fp8_blockscale_gemm_sm90|torch\._scaled_mm(_v2)?", "W8A8_fp8"))
"""Operator, as a pattern -> what it multiplies."""

HUMMING = "humming_gemm"
"""The operator that says the formats of its weights, activations and scales."""
WEIGHT_ONLY = {("float8e4m3", "float8e8m0"): "_mxfp8", ("float8e4m3", ""): "_fp8",
               ("float4e2m1", "float8e8m0"): "_mxfp4", ("float4e2m1", "float8e4m3"): "_nvfp4",
               ("float4e2m1", ""): "_fp4"}
"""Formats of float weights and of their scales -> how modes call them."""
PACKED = "gptq_marlin_gemm"
"""The operator for integers of several widths."""
PLAIN = ("torch.mm", "torch.addmm", "torch.bmm", "torch.matmul", "torch.linear")
SCALED = "torch._scaled_mm"


def digest(steps: Sequence[Step]) -> dict[str, Any]:
    """Return kernel, act, mode, fused and kernel_backend, nothing without a product: the last step
    is what is multiplied."""
    last = next((step for step in reversed(steps) if step.kind != ACTIVATION), None)
    if last is None:
        return {}
    acts = {step.name for step in steps if step.kind == ACTIVATION}
    return {"kernel": last.name, "act": _act(acts, last), "mode": _mode(last),
            "fused": last.result != "float32" if last.name.startswith(SCALED) else None,
            "kernel_backend": last.backend if last.kind == PRODUCT else None}


def _act(acts: set[str], last: Step) -> str:
    found = [act for act in ACT_ORDER if act in acts]
    if not found:
        found = [act for part, act in IN_KERNEL if part in last.name] or ["none"]
    return ",".join(found)


def _mode(last: Step) -> str | None:
    """Return the mode, None where the operator does not say."""
    if last.name in PLAIN:
        return "W16A16"
    if last.name == HUMMING:
        return _humming_mode(*last.dtypes)
    if last.name == PACKED:
        return f"W{last.bits}A16" if last.bits else None
    return next((mode for name, mode in MODES if re.fullmatch(name, last.name)), None)


def _humming_mode(weight: str, act: str, scale: str) -> str:
    """Return the mode of the package humming's product, whose formats have its own names."""
    bits, wide = (re.sub(r"^[a-z]+(\d+).*", r"\1", name) for name in (weight, act))
    if wide == "16":
        return f"W{bits}A16{WEIGHT_ONLY.get((weight, scale), WEIGHT_ONLY.get((weight, ''), ''))}"
    if weight == "float8e4m3" and act == weight and scale != "float8e8m0":
        return "W8A8_fp8"
    whole = "int" in weight and act == "float8e4m3"
    return f"W{bits}A{wide}_{'fp8' if whole else act}"
