"""The engine's model classes, each imported when it is asked for: importing all of them takes
longer than the questions."""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quantplan.oracle.worker.modules import imported

MODELS = "sglang.srt.models"
CLASS = re.compile(r"^class (\w+)\b", re.MULTILINE)
ENTRY = "EntryClass"


class Classes(dict[str, Any]):
    """Model class name -> class, as the registry holds them."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, list[str]] = {}
        for place in imported(MODELS).__path__:
            for file in sorted(os.listdir(place)):
                if file.endswith(".py"):
                    self._read(place, file)

    def _read(self, place: str, file: str) -> None:
        with open(os.path.join(place, file), encoding="utf-8") as source:
            text = source.read()
        for name in CLASS.findall(text) if ENTRY in text else ():
            self._files.setdefault(name, []).append(file.removesuffix(".py"))

    def _look_up(self, name: object) -> None:
        for module in self._files.pop(str(name), ()):
            entry: Any = getattr(imported(f"{MODELS}.{module}"), ENTRY, ())
            for found in entry if isinstance(entry, (list, tuple)) else (entry,):
                self.setdefault(found.__name__, found)

    def __contains__(self, name: object) -> bool:
        self._look_up(name)
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        self._look_up(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the class, `default` where no file has it."""
        self._look_up(name)
        return super().get(name, default)


def read_classes_when_asked() -> None:
    """Import the registry without the model classes."""
    with _no_files(f"{MODELS}."):
        registry = imported(f"{MODELS}.registry").ModelRegistry
    registry.models = Classes()


@contextmanager
def _no_files(prefix: str) -> Iterator[None]:
    every = pkgutil.iter_modules

    def some(path: Any = None, given: str = "") -> Any:
        return iter(()) if given == prefix else every(path, given)
    vars(pkgutil)["iter_modules"] = some
    try:
        yield
    finally:
        vars(pkgutil)["iter_modules"] = every
