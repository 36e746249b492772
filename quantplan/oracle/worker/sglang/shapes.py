"""What kernels return, as empty tensors: quantized activations with their scales, repacked
weights. Their sizes are those of the engine's own kernels; their values are never computed."""

from __future__ import annotations

from typing import Any

from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.sglang.record import (
    ACTIVATION,
    PRODUCT,
    RECORD,
    ReachedError,
    dtype_name,
)

MOST_DTYPES = 4


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor."""
    return isinstance(value, imported("torch").Tensor)


def reached(name: str, given: Any, named: Any) -> Any:
    """Note the product NAME with what it is called with, and end the run."""
    values = [*given, *named.values()]
    backend = named.get("backend")
    bits = [value.size_bits for value in values if hasattr(value, "size_bits")]
    bits += [named["num_bits"]] if isinstance(named.get("num_bits"), int) else []
    dtypes = tuple(dtype_name(value) for value in values if is_tensor(value))
    RECORD.add(PRODUCT, name, backend=backend if isinstance(backend, str) else None,
               dtypes=dtypes[:MOST_DTYPES], bits=bits[0] if bits else None)
    raise ReachedError


def _fp8() -> Any:
    return imported("torch").float8_e4m3fn


def _floats(like: Any, *sizes: int) -> Any:
    return like.new_empty(sizes, dtype=imported("torch").float32)


def _bytes(like: Any, *sizes: int) -> Any:
    return like.new_empty(sizes, dtype=imported("torch").uint8)


def per_token(x: Any, *given: Any, **named: Any) -> Any:
    """FP8 rows and a scale for each."""
    rows = x.reshape(-1, x.shape[-1])
    return imported("torch").empty_like(rows, dtype=_fp8()), _floats(x, rows.shape[0], 1)


def per_token_int8(x: Any, *given: Any, **named: Any) -> Any:
    """INT8 rows and a scale for each."""
    torch = imported("torch")
    return torch.empty_like(x, dtype=torch.int8), _floats(x, *x.shape[:-1], 1)


def per_group(x: Any, group_size: int | None = None, *given: Any, **named: Any) -> Any:
    """FP8 rows and a scale for each group of a row."""
    torch, width = imported("torch"), x.shape[-1]
    groups = max(1, -(-width // (group_size or width)))
    return (torch.empty_like(x, dtype=_fp8(), memory_format=torch.contiguous_format),
            _floats(x, *x.shape[:-1], groups))


def static(x: Any, scale: Any = None, repeat_scale: bool = False, *given: Any, **named: Any) -> Any:
    """FP8 rows and the scale that was given, for all or repeated for each."""
    sizes = (x.shape[0], 1) if repeat_scale else (1,)
    return imported("torch").empty_like(x, dtype=_fp8()), _floats(x, *sizes)


def scaled(x: Any, scale: Any = None, num_token_padding: int | None = None,
           use_per_token_if_dynamic: bool = False, *given: Any, **named: Any) -> Any:
    """FP8 rows, padded to a number of them, with the scale given or those that it computes."""
    rows = max(num_token_padding or 0, x.shape[0])
    values = x.new_empty((rows, x.shape[1]), dtype=_fp8())
    if scale is not None:
        RECORD.add(ACTIVATION, "static")
        return values, scale
    RECORD.add(ACTIVATION, "per_token" if use_per_token_if_dynamic else "per_tensor_dynamic")
    return values, _floats(x, *((rows, 1) if use_per_token_if_dynamic else (1,)))


def fp4_pair(*given: Any, **named: Any) -> Any:
    """Two FP4 numbers a byte, and a scale for 16 in rows padded to 128."""
    x = next(value for value in (*given, *named.values()) if is_tensor(value))
    rows, width = x.shape[0], x.shape[-1]
    return _bytes(x, rows, width // 2), _bytes(x, -(-rows // 128) * 128, width // 16)


def mxfp8_group(x: Any) -> Any:
    """FP8 rows and a scale for 32."""
    return (imported("torch").empty_like(x, dtype=_fp8()),
            _bytes(x, *x.shape[:-1], x.shape[-1] // 32))


def repacked(*given: Any, **named: Any) -> Any:
    """Weights in Marlin's tiles of 16 rows."""
    weight: Any = named.get("b_q_weight", given[0] if given else None)
    sizes = iter([value for value in given if isinstance(value, int)])
    k, n, bits = (named[name] if name in named else next(sizes)
                  for name in ("size_k", "size_n", "num_bits"))
    tiles = (k // 16, n * (bits // 2))
    outer = () if weight.ndim == 2 else (weight.shape[0],)
    return weight.new_empty((*outer, *tiles), dtype=imported("torch").int32)


def same(x: Any, *given: Any, **named: Any) -> Any:
    """A tensor like the one given."""
    return imported("torch").empty_like(x)


def unpacked(weight: Any, bits: int, k: int, n: int) -> Any:
    """Weights one an integer."""
    return weight.new_empty((k, n), dtype=imported("torch").int32)


def packed(weight: Any, bits: int, k: int, n: int) -> Any:
    """Weights in columns of 32 bits."""
    return weight.new_empty((k, n * bits // 32), dtype=imported("torch").int32)


def one_scale(weight: Any, weight_scale: Any, *given: Any, **named: Any) -> Any:
    """The greatest scale and the weights that go with it."""
    return weight_scale.new_empty(()), weight


def alike(*given: Any, **named: Any) -> bool:
    """Scales are equal: they are taken to be well formed."""
    return True
