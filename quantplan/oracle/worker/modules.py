"""Modules of the engine's environment, which no type checker here knows."""

from __future__ import annotations

import importlib
from typing import Any


def imported(name: str) -> Any:
    """Return a module of the engine's environment, imported now."""
    return importlib.import_module(name)
