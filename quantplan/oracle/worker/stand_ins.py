"""Stand-ins for optional packages: every attribute exists and serves as class, function or value.

The engine's selection asks whether a package is there and takes names from it; it never runs them.
"""

from __future__ import annotations

import importlib.machinery
import types
from collections.abc import Mapping
from typing import Any


def _is_protocol(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class StandInType(type):
    """The type of every stand-in: attributes that are not there are stand-ins too."""

    def __getattr__(cls, name: str) -> Any:
        if _is_protocol(name):
            raise AttributeError(name)
        return stand_in(name, cls.__module__)


class StandIn(metaclass=StandInType):
    """A class of a package that is not here: can be made, called, subscripted and entered."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return StandIn()

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if _is_protocol(name):
            raise AttributeError(name)
        return stand_in(name, type(self).__module__)

    def __index__(self) -> int:
        return 1


def _as_one(operator: str) -> Any:
    """Return a method that computes with 1 in place of the stand-in: sizes stay numbers."""
    def method(self: StandIn, other: Any) -> Any:
        return getattr(1, operator)(1 if isinstance(other, StandIn) else other)
    return method


for _name in ("lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv",
              "rfloordiv", "mod", "rmod"):
    setattr(StandIn, f"__{_name}__", _as_one(f"__{_name}__"))


def stand_in(name: str, module: str) -> type:
    """Return a new stand-in class called NAME of the module MODULE."""
    return StandInType(name, (StandIn,), {"__module__": module})


class _LatentAttention(StandIn):
    """vLLM looks for ckv_scale_arr in the signature of run; FlashInfer 0.7 has it."""

    def run(self, *arguments: Any, ckv_scale_arr: Any = None, **named: Any) -> None:
        pass


class _SparseDecodeSizes:
    """(heads, width) pairs that FlashInfer 0.7 serves on 12.0: 1 to 128 heads, any width."""

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return 1 <= pair[0] <= 128 and pair[1] >= 1


ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "flashinfer.mla": {"BatchMLAPagedAttentionWrapper": _LatentAttention},
    "flashinfer.mla._sparse_mla_sm120": {"_DECODE_DSV4_DISPATCH": _SparseDecodeSizes()},
}
"""What selection asks of a package beyond whether it is there."""


class StandInModule(types.ModuleType):
    """A module of a package that is not here."""

    def __init__(self, spec: importlib.machinery.ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec
        self.__path__: list[str] = []
        self.__file__ = f"<stand-in for {spec.name}>"
        self.__version__ = "99.0.0"

    def __getattr__(self, name: str) -> Any:
        if _is_protocol(name):
            raise AttributeError(name)
        answers = ANSWERS.get(self.__name__, {})
        if name in answers:
            return answers[name]
        if name == "is_supported":
            return lambda *arguments, **named: True
        return stand_in(name, f"{STAND_IN}.{self.__name__}")


STAND_IN = "stand_in"
"""First part of the __module__ of every stand-in: an error that names it is not the engine's."""
