"""NVFP4 linear layers: what compressed-tensors and ModelOpt ask of the same kernel families
(model_executor/kernels/linear/__init__.py:init_nvfp4_linear_kernel)."""

from __future__ import annotations

from quantplan.dispatch.vllm.context import Assignment


def layer(method: str, weight_only: bool, why: str | None = None) -> Assignment:
    """Return the assignment of an NVFP4 layer: 4-bit weights, activations 4-bit too unless
    `weight_only`. Every kernel takes every shape, so nothing else is asked."""
    family = "nvfp4_w4a16" if weight_only else "nvfp4_w4a4"
    if weight_only and why is None:
        why = "the checkpoint quantizes weights only"
    return Assignment(method, None, family, {"quant.weight_only": weight_only},
                      "none" if weight_only else "group", why=why)
