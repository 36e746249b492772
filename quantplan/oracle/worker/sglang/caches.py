"""Answers that the engine keeps: forgotten between questions, so that none depends on another."""

from __future__ import annotations

import logging
import sys
from typing import Any

KEEPING = ("sglang.srt.layers", "sglang.srt.utils", "sglang.srt.configs", "sglang.srt.arg_groups")
"""Modules whose cached functions depend on the question."""
ONCE = ("warning_once", "info_once", "error_once")


class Caches:
    """The cached functions of the modules that are imported."""

    def __init__(self) -> None:
        self._seen = 0
        self._cached: list[Any] = []

    def clear(self) -> None:
        """Forget every answer."""
        if len(sys.modules) != self._seen:
            self._seen = len(sys.modules)
            self._cached = list(_cached())
        for function in self._cached:
            function.cache_clear()


def _cached() -> list[Any]:
    found = {id(value): value for name in ONCE
             if hasattr(value := getattr(logging.Logger, name, None), "cache_clear")}
    for name, module in list(sys.modules.items()):
        if name.startswith(KEEPING) and module is not None:
            found |= {id(value): value for value in list(vars(module).values())
                      if callable(getattr(type(value), "cache_clear", None))}
    return list(found.values())
