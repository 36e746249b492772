"""Torch without a device: what is asked for on a GPU is a tensor without values, and every product
and operator is noted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.sglang.record import OPERATOR, PRODUCT, RECORD, dtype_name
from quantplan.oracle.worker.sglang.shapes import is_tensor

TORCHS_OWN = ("aten", "prims", "prim")
PRODUCTS = ("mm", "addmm", "bmm", "matmul", "linear", "_int_mm", "_scaled_mm", "_scaled_mm_v2")
MOST_OPERANDS = 3
READS = ("item", "__float__", "__int__", "__bool__")
COMPARES = ("all", "isclose", "eq")
NUMBERS = "numbers_it_was_made_of"
"""Attribute of a tensor made of a list, which sizes follow from."""
HOLDS = "holds_for_well_formed_scales"
"""Attribute of a comparison's result. Scales are taken to be finite, positive and equal; no choice
of an operator depends on more."""


@contextmanager
def without_device(watched: bool = False) -> Iterator[None]:
    """Be where tensors have no values; `watched` notes what is computed with them."""
    torch = imported("torch")
    with ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        stack.enter_context(_placed()())
        if watched:
            stack.enter_context(_watched()())
            stack.enter_context(torch.no_grad())
        yield


@cache
def _placed() -> type:
    """Return the mode under which GPU tensors are meta tensors, and reading one has an answer."""
    def function(self: Any, asked: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = {name: _elsewhere(value) if name == "device" else value
                 for name, value in (named or {}).items()}
        given = (*given[:1], *(_elsewhere(value) for value in given[1:]))
        if given and is_tensor(given[0]) and given[0].is_meta:
            return _of_meta(asked, given, named)
        found = asked(*given, **named)
        if getattr(asked, "__name__", "") == "tensor" and isinstance(given[0], list):
            setattr(found, NUMBERS, given[0])
        return found
    mode = imported("torch.overrides").TorchFunctionMode
    return type("Placed", (mode,), {"__torch_function__": function})


def _elsewhere(value: Any) -> Any:
    """Return a device that is a GPU as the one without values."""
    is_device = isinstance(value, (str, imported("torch").device))
    return "meta" if is_device and str(value).startswith("cuda") else value


def _of_meta(asked: Any, given: Any, named: Any) -> Any:
    name = getattr(asked, "__name__", "")
    if name == "cuda":
        return given[0]
    if name == "_unique2":
        return _one_value(given[0])
    if name in READS:
        return _read(given[0], name)
    if name in ("allclose", "equal"):
        return True
    repeats = getattr(given[1], NUMBERS, None) if name == "repeat_interleave" else None
    if repeats is not None:
        named["output_size"] = sum(repeats) * (given[0].shape[given[2]] if len(repeats) == 1 else 1)
    found = asked(*given, **named)
    if name == "to" and hasattr(given[0], NUMBERS):
        setattr(found, NUMBERS, getattr(given[0], NUMBERS))
    if name in COMPARES:
        setattr(found, HOLDS, True)
    return found


def _read(tensor: Any, name: str) -> Any:
    if tensor.dtype == imported("torch").bool or name == "__bool__":
        return bool(getattr(tensor, HOLDS, False))
    return 1 if name == "__int__" else 1.0


def _one_value(tensor: Any) -> Any:
    first = tensor.reshape(-1)[:1]
    return first, first, first


@cache
def _watched() -> type:
    """Return the mode that notes products of torch and operators of others."""
    def dispatch(self: Any, asked: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        space, name = asked._schema.name.split("::")
        if name == "_unique2":
            return _one_value(given[0])
        if space not in TORCHS_OWN:
            RECORD.add(OPERATOR, name)
        found = asked(*given, **(named or {}))
        if space in TORCHS_OWN and name in PRODUCTS:
            result = found[0] if isinstance(found, tuple) else found
            RECORD.add(PRODUCT, f"torch.{name}", result=dtype_name(result), dtypes=tuple(
                dtype_name(value) for value in given if is_tensor(value))[:MOST_OPERANDS])
        return found
    mode = imported("torch.utils._python_dispatch").TorchDispatchMode
    return type("Watched", (mode,), {"__torch_dispatch__": dispatch})


def note_triton_kernels() -> None:
    """Note launches of Triton kernels, which run nothing."""
    def run(self: Any, *given: Any, **named: Any) -> None:
        RECORD.add(OPERATOR, getattr(self, "__name__", None) or self.fn.__name__)
    imported("triton.runtime.jit").JITFunction.run = run
