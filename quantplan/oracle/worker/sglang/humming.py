"""The package humming without a GPU: its own schemas, configs and checks run; what would compile or
launch a kernel computes shapes only, or is noted as the product that it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.sglang.record import ACTIVATION, PRODUCT, RECORD, ReachedError
from quantplan.oracle.worker.sglang.shapes import is_tensor

PREPARATIONS = ("pack_weight", "unpack_weight", "repack_weight", "quant_weight", "dequant_weight")
"""Operators that run as the package's own code under fake tensors, which it knows."""
IN_PLACE = "process_mxfp4_w4a8_weight"
PACKED_BITS = 8
BANDWIDTH_GB_PER_S, FP16_TOPS = 3350.0, 989.0
"""Figures of an H100, as the other ones of the emulated device: they size tiles."""


def run_without_values() -> None:
    """Replace the operators of the package, where it is there."""
    try:
        ops = imported("humming.ops")
        weight = imported("humming.ops.weight")
    except ImportError:
        return
    for name in PREPARATIONS:
        setattr(ops, name, _of_shapes(getattr(weight, name)))
    setattr(ops, IN_PLACE, lambda inputs, *given, **named: inputs)
    ops.quant_input = _quantized
    ops.humming_gemm = _product
    _choose_without_compiling()


def _of_shapes(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator on tensors without values: it is given fake tensors of a GPU, with which
    it launches nothing, and its own checks run."""
    def computed(*given: Any, **named: Any) -> Any:
        torch = imported("torch")
        fakes = imported("torch._subclasses.fake_tensor")
        mode = fakes.FakeTensorMode()

        def fake(value: Any) -> Any:
            return fakes.FakeTensor(mode, value.detach(), torch.device("cuda:0")) if (
                is_tensor(value)) else value
        with torch._C.DisableTorchFunction():
            values, rest = [*map(fake, given)], {name: fake(v) for name, v in named.items()}
            with mode:
                found = operator(*values, **rest)
        return tuple(map(_meta, found)) if isinstance(found, tuple) else _meta(found)
    return computed


def _meta(value: Any) -> Any:
    return imported("torch").empty(value.shape, dtype=value.dtype, device="meta")


def _quantized(inputs: Any, dtype: str, group_size: int | None = None, **named: Any) -> Any:
    """Note a quantization of activations; return them and a scale for each group of a row."""
    torch, bits = imported("torch"), imported("humming.dtypes").DataType.from_str(dtype).num_bits
    RECORD.add(ACTIVATION, "group" if group_size else "per_token")
    *rows, k = inputs.shape
    values = inputs.new_empty((*rows, k * bits // PACKED_BITS), dtype=torch.uint8)
    return values, inputs.new_empty((*rows, k // (group_size or k)), dtype=torch.float32)


def _product(layer_config: str, compute_config: str | None = None,
             tuning_config: str | None = None, **named: Any) -> Any:
    """Note the product with the formats of its weights, activations and scales, choose its tiles
    and check them as the package does, and end the run."""
    config = json.loads(layer_config)
    RECORD.add(PRODUCT, "humming_gemm", dtypes=tuple(
        str(config[name]) for name in ("b_dtype", "a_dtype", "bs_dtype")))
    imported("humming.kernel.humming").HummingKernel.prepare_kernels(
        layer_config, compute_config, tuning_config)
    raise ReachedError


def _choose_without_compiling() -> None:
    """Let kernels be chosen and checked: none is compiled, and NVML is asked nothing."""
    kernel, device = imported("humming.kernel.humming"), imported("humming.utils.device")
    os.environ["HUMMING_DISABLE_PARALLEL_BUILD"] = "1"
    chosen: Any = kernel.HummingKernel
    chosen.current_context = staticmethod(lambda: 0)
    chosen.prepare = lambda self: None
    chosen.load_cubin = lambda self: None
    chosen.kernel_id = 0
    device.calculate_gpu_bandwidth = lambda *given: BANDWIDTH_GB_PER_S
    device.estimate_tensorcore_max_tops = lambda *given: FP16_TOPS
