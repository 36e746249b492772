"""Which optional packages the engine can find: as the question says, whatever is installed here."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from quantplan.oracle.worker.stand_ins import StandInModule

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "flashinfer_installed": ("flashinfer",),
    "flashinfer": ("flashinfer_cubin",),
    "deep_gemm": ("deep_gemm", "vllm.third_party.deep_gemm"),
    "humming": ("humming",),
    "cutedsl": ("cutlass",),
    "flash_attn_4": ("vllm.vllm_flash_attn.cute",),
    **{name: (name,) for name in (
        "triton_kernels", "tilelang", "quack", "tokenspeed_mla", "conch", "b12x", "fbgemm_gpu",
        "quark", "torchao", "deep_ep", "helion", "aiter", "bitsandbytes")},
}
"""Library -> the packages that it is. FlashInfer's kernels make flashinfer-python usable."""

UNSAID: Mapping[str, str | None] = {
    "flashinfer_installed": "flashinfer", "quack": None, "tokenspeed_mla": None,
    "flash_attn_4": None}
"""Libraries that a question need not name -> the library that brings them along; None: the wheel's
metadata requires them."""

USED_FOR_REAL = ("humming",)
"""Libraries whose own code answers for the mode of a kernel; others need no more than a name."""


class Shelf:
    """A finder that offers the packages of the libraries that are present and hides the others."""

    def __init__(self) -> None:
        self.present: frozenset[str] = frozenset()
        self._real = {name for name in USED_FOR_REAL if importlib.util.find_spec(name)}
        found = [_Hiding(self, finder) if finder is importlib.machinery.PathFinder else finder
                 for finder in sys.meta_path]
        sys.meta_path[:] = [self, *found]

    def stock(self, libraries: Mapping[str, bool]) -> None:
        """Make these libraries present or absent; absent is what is not named."""
        brought = {name for name, by in UNSAID.items() if name not in libraries
                   and (by is None or libraries.get(by))}
        self.present = frozenset(name for name, there in libraries.items() if there) | brought

    def library_of(self, module: str) -> str | None:
        """Return the library that a module belongs to."""
        for library, packages in PACKAGES.items():
            if any(module == package or module.startswith(package + ".") for package in packages):
                return library
        return None

    def hides(self, module: str) -> bool:
        """Return whether a module that may be installed here must not be found."""
        library = self.library_of(module)
        return library is not None and (library not in self.present or library not in self._real)

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a stand-in, None for modules that are not this finder's."""
        library = self.library_of(name)
        if library is None or library not in self.present or library in self._real:
            return None
        return importlib.machinery.ModuleSpec(name, _Maker(), is_package=True)


class _Maker(importlib.abc.Loader):
    """The loader of stand-ins."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandInModule(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


class _Hiding:
    """The path finder, which does not see what the shelf hides."""

    def __init__(self, shelf: Shelf, finder: Any) -> None:
        self._shelf, self._finder = shelf, finder

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> Any:
        return None if self._shelf.hides(name) else self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)
