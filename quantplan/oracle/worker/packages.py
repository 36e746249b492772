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


class Shelf:
    """A finder that offers the packages of the libraries that are present and hides the others.

    `packages` says which packages a library is; `unsaid` names libraries that a question need not
    name, and which library brings them along (None: the wheel's metadata requires them); `real`
    ones are used as installed, the others are modules `made_of` stand-ins.
    """

    def __init__(self, packages: Mapping[str, tuple[str, ...]],
                 unsaid: Mapping[str, str | None] | None = None, real: Sequence[str] = (),
                 made_of: type[StandInModule] = StandInModule) -> None:
        self.present: frozenset[str] = frozenset()
        self._packages, self._unsaid, self._made_of = packages, unsaid or {}, made_of
        self._real = {name for name in real if importlib.util.find_spec(name)}
        found = [_Hiding(self, finder) if finder is importlib.machinery.PathFinder else finder
                 for finder in sys.meta_path]
        sys.meta_path[:] = [self, *found]

    def stock(self, libraries: Mapping[str, bool]) -> None:
        """Make these libraries present or absent; absent is what is not named."""
        brought = {name for name, by in self._unsaid.items() if name not in libraries
                   and (by is None or libraries.get(by))}
        self.present = frozenset(name for name, there in libraries.items() if there) | brought

    def library_of(self, module: str) -> str | None:
        """Return the library that a module belongs to."""
        for library, packages in self._packages.items():
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
        return importlib.machinery.ModuleSpec(name, _Maker(self._made_of), is_package=True)


class _Maker(importlib.abc.Loader):
    """The loader of stand-ins."""

    def __init__(self, made_of: type[StandInModule]) -> None:
        self._made_of = made_of

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._made_of(spec)

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
