"""What a chosen kernel computes, where the kernel itself says so.

Mixed-precision kernels hold their weight and activation types. Humming settles its activation type
when it prepares the weights; its own preparation is run as far as that point. Of other kernels the
class name says it (scaled matrix products among them), and nothing is told here.
"""

from __future__ import annotations

import sys
from typing import Any

from quantplan.oracle.worker.modules import imported

PREPARE = "prepare_humming_linear_layer_config"
SCHEMA = "vllm.model_executor.layers.quantization.utils.humming.schema"
PACKAGE = "vllm.utils.humming"
FULL_BITS = 16


class _SettledError(Exception):
    """Carries the mode out of the preparation, which goes no further."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        super().__init__(mode)


def mode_of(kernel: Any, layer: Any) -> str | None:
    """Return the mode, or None where the kernel does not say."""
    name = type(kernel).__name__
    if name.startswith("Humming"):
        return None if "ScaledMM" in name else _humming_mode(kernel, layer)
    config: Any = getattr(kernel, "config", None)
    if not hasattr(config, "weight_type") or not hasattr(config, "act_type"):
        return None
    bits = config.act_type.itemsize * 8
    kind = "_fp8" if "float8" in str(config.act_type) else "_int8" if bits < FULL_BITS else ""
    return f"W{config.weight_type.size_bits}A{bits}{kind}"


def _humming_mode(kernel: Any, layer: Any) -> str | None:
    module = sys.modules[type(kernel).__module__]
    original = getattr(module, PREPARE, None)
    if original is None:
        return None
    setattr(module, PREPARE, _settle)
    try:
        kernel.process_weights_after_loading(layer)
    except _SettledError as settled:
        return settled.mode
    except Exception:  # the weights are not there; another layout than linear weights
        return None
    finally:
        setattr(module, PREPARE, original)
    return None


def _settle(layer: Any, quant_config: Any, input_quant_config: Any = None, *,
            input_schema: Any = None, allow_input_schema_fallback: bool = True) -> None:
    """Stand in for the preparation: settle the activation type as it does, and stop there."""
    humming = imported(PACKAGE)
    schema = imported(SCHEMA)
    weights = humming.BaseWeightSchema.from_config(quant_config)
    if input_schema is None:
        input_schema = (humming.BaseInputSchema.from_config(input_quant_config)
                        if input_quant_config is not None else humming.HummingInputSchema())
    settled = schema.check_and_fallback_input_schema(
        weight_schema=weights, input_schema=input_schema, param_dtype=layer.params_dtype,
        allow_fallback=allow_input_schema_fallback)
    raise _SettledError(_words(weights.to_humming_schema(layer.params_dtype), settled))


def _words(weights: Any, activations: Any) -> str:
    bits, dtype = weights.b_dtype.num_bits, activations.a_dtype
    if dtype is None or dtype.num_bits == FULL_BITS:
        return f"W{bits}A{FULL_BITS}"
    return f"W{bits}A{dtype.num_bits}_{dtype}"
