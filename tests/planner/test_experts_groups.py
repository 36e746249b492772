"""Experts whose inputs of one rank are not whole groups of a scale."""

from __future__ import annotations

import pytest

from quantplan import budget


def test_scales_of_nvfp4_experts_are_of_whole_groups() -> None:
    """vllm 0.32.0 quantization/modelopt.py:ModelOptNvFp4FusedMoE.create_weights: 768 / 32 = 24
    inputs of a rank have 24 // 16 = 1 scale; 128 experts of 2,048 features in 48 layers."""
    found = budget("qwen3-30b-a3b", gpu="h200", tp=32, as_format="modelopt-nvfp4")
    (line,) = (line for line in found.weights.lines if line.name == "expert scales")
    per_expert = 2 * 24 * (2048 // 16) + 2048 * 1
    assert line.formula.startswith(f"{48 * 128 * per_expert:,} x 8 bits")


@pytest.mark.parametrize("options, rows, features", [
    ({}, 384, 2880), ({"moe_backend": "marlin"}, 384, 3072), ({"gpu": "b200"}, 384, 3072)])
def test_sglang_rounds_mxfp4_experts_up(
    options: dict[str, str], rows: int, features: int
) -> None:
    """sglang 0.5.22 layers/quantization/mxfp4.py:Mxfp4MoEMethod.create_weights: 2,880 / 8 = 360 is
    no multiple of 64; 32 experts in 24 layers."""
    found = budget("gpt-oss-20b", engine="sglang", tp=8, **{"gpu": "h200", **options})
    (line,) = (line for line in found.weights.lines if line.name == "expert weights")
    assert line.formula == f"{24 * 32 * 3 * rows * features:,} x 4 bits"
