"""Layers that Humming takes and cannot prepare while the weights load."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import Context

METHOD = "HummingLinearMethod"
SOURCE = ("model_executor/layers/quantization/utils/humming/schema.py:"
          "check_and_fallback_input_schema")


def humming_without_activations(context: Context, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """No activation format goes with the weights, not even 16 bits, or none may take the place of
    the one asked for."""
    hit = next((x for x in layers if _unprepared(x)), None)
    if hit is not None and context.dtype != "float32":
        yield Finding("weight loading", "error", "humming-no-activations",
                      f"{hit.path}: Humming has no activation format for these weights on "
                      f"{context.gpu.capability_text}: loading raises ValueError (No compatible "
                      "Humming input schema for ...)",
                      _hint(hit), SOURCE)


def _hint(layer: Layer) -> str:
    if layer.method == METHOD:
        return ("Drop VLLM_HUMMING_INPUT_QUANT_CONFIG, or add \"allow_fallback\": true to it.")
    return f"Set VLLM_DISABLED_KERNELS={layer.kernel}, where another kernel of the list runs."


def _unprepared(layer: Layer) -> bool:
    by_kernel = (layer.kernel or "").startswith("Humming") and layer.mode is None
    return by_kernel or (layer.method == METHOD and layer.act is None)
