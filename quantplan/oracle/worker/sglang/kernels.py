"""Stand-ins for packages of compiled kernels: a call with tensors is noted, and answered with
tensors of fitting shape."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from quantplan.oracle.worker.device import SM_COUNT
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.sglang.record import ACTIVATION, CALL, RECORD
from quantplan.oracle.worker.sglang.shapes import fp4_pair, is_tensor, reached
from quantplan.oracle.worker.stand_ins import STAND_IN, StandIn, StandInModule, StandInType

PRODUCT_NAME = re.compile(r"(mm|bmm|gemm)_\w+")


class KernelType(StandInType):
    """The type of these stand-ins: calling one is calling a kernel."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return kernel(name, f"{self.__module__}.{self.__name__}")

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not self.__module__.startswith(f"{STAND_IN}."):
            return super().__call__(*given, **named)  # a class of the engine's made from one
        package = self.__module__.removeprefix(f"{STAND_IN}.")
        return called(f"{package}.{self.__name__}", given, named)

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Kernel(StandIn, metaclass=KernelType):
    """Anything of such a package; what a call without tensors returns."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return called(f"{type(self).__module__}.{type(self).__name__}", given, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return kernel(name, type(self).__module__)

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return imported("pydantic_core").core_schema.any_schema()


def kernel(name: str, module: str) -> type:
    """Return a new stand-in called NAME of a module."""
    return KernelType(name, (Kernel,), {"__module__": module})


def called(path: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Return what a call returns: a decorator its function, a kernel its tensors, and anything
    without tensors a stand-in."""
    if len(given) == 1 and not named and isinstance(given[0], (type, types.FunctionType)):
        return given[0]
    tensors = [value for value in (*given, *named.values()) if is_tensor(value)]
    return _computed(path, tensors, given, named) if tensors else made(path)


def made(path: str) -> Any:
    """Return an instance of a stand-in, as a call without tensors does."""
    package, _, name = path.rpartition(".")
    return object.__new__(kernel(name, f"{STAND_IN}.{package}"))


def _computed(path: str, tensors: list[Any], given: tuple[Any, ...], named: Mapping[str, Any]
              ) -> Any:
    torch, name, first = imported("torch"), path.rpartition(".")[2], tensors[0]
    if "indices" in path:
        return torch.empty(first.shape[0], dtype=torch.long, device=first.device)
    if name.endswith("Params"):  # bitsandbytes' parameter classes
        return torch.nn.Parameter(first, requires_grad=False)
    if name == "prepare_bf16_fp4_weights":
        return tuple(tensors[:3])
    if PRODUCT_NAME.fullmatch(name):
        reached(name, given, named)
    if "block_scale_interleave" in path:
        return first.reshape(-1)
    if "quantize" in path:
        if "fp4_quant" in path:
            RECORD.add(ACTIVATION, "fp4")
        return fp4_pair(*given, **named)
    RECORD.add(CALL, name)  # it moves weights about and keeps their shape
    return first.contiguous()


class ScalarType(NamedTuple):
    """A number format as sgl_kernel names it; its `size_bits` are read, and copies are equal."""

    name: str
    size_bits: int

    @property
    def id(self) -> int:
        """Return a number of its own."""
        return sum(map(ord, self.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScalarType) and self.name == other.name  # configs are copied

    def __hash__(self) -> int:
        return self.id

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"ScalarType.{self.name}"


BITS: Mapping[int, tuple[str, ...]] = {
    2: ("uint2b2",), 3: ("uint3b4",), 4: ("int4", "uint4", "uint4b8", "float4_e2m1f"),
    6: ("float6_e3m2f", "float6_e2m3f"),
    8: ("int8", "uint8", "uint8b128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    16: ("float16", "bfloat16", "float16_e8m7")}
"""Bits -> the number formats of the kernel package (sgl_kernel/scalar_type.py)."""


def _scalar_types() -> Any:
    return types.SimpleNamespace(**{name: ScalarType(name, bits)
                                    for bits, names in BITS.items() for name in names})


def _precision_config() -> type:
    """Return triton_kernels' dataclass, whose field names the engine asks for."""
    dataclasses = imported("dataclasses")
    names = ("flex_ctx", "weight_scale", "b_mx_scale", "b_microblock_size")
    made_class: type = dataclasses.make_dataclass(
        "PrecisionConfig", [(name, object, dataclasses.field(default=None)) for name in names])
    return made_class


VALUES: Mapping[str, Callable[[], Any]] = {
    "sgl_kernel.scalar_type.ScalarType": lambda: ScalarType,
    "sgl_kernel.scalar_type.scalar_types": _scalar_types,
    "triton_kernels.matmul.PrecisionConfig": _precision_config,
    "triton_kernels.numerics_details.mxfp.MXFP_BLOCK_SIZE": lambda: 32,
    "cudnn.backend_version": lambda: lambda: 92301,
    "deep_gemm.get_num_sms": lambda: lambda: SM_COUNT,
}
"""What the engine computes with, not only calls."""


class KernelModule(StandInModule):
    """A module of such a package."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if name == "ceil_div":
            value: Any = _ceil_div
        else:
            value = VALUES[path]() if path in VALUES else kernel(
                name, f"{STAND_IN}.{self.__name__}")
        setattr(self, name, value)
        return value


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)
