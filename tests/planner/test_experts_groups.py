"""Experts whose inputs of one rank are not whole groups of a scale."""

from __future__ import annotations

from quantplan import budget


def test_scales_of_nvfp4_experts_are_of_whole_groups() -> None:
    """vllm 0.32.0 quantization/modelopt.py:ModelOptNvFp4FusedMoE.create_weights: 768 / 32 = 24
    inputs of a rank have 24 // 16 = 1 scale; 128 experts of 2,048 features in 48 layers."""
    found = budget("qwen3-30b-a3b", gpu="h200", tp=32, as_format="modelopt-nvfp4")
    (line,) = (line for line in found.weights.lines if line.name == "expert scales")
    per_expert = 2 * 24 * (2048 // 16) + 2048 * 1
    assert line.formula.startswith(f"{48 * 128 * per_expert:,} x 8 bits")
