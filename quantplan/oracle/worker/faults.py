"""Whose error it is: the engine's, or of what stands in for a GPU machine here."""

from __future__ import annotations

import re
import traceback
from types import ModuleType
from typing import Any

from quantplan.oracle.worker.device import Nothing
from quantplan.oracle.worker.group import Group
from quantplan.oracle.worker.stand_ins import STAND_IN, StandIn, StandInModule, StandInType

OURS: tuple[type, ...] = (Nothing, Group, StandIn, StandInModule, StandInType)
DEVICE = re.compile(r"Torch not compiled with CUDA|No CUDA GPUs|NVIDIA driver|libcuda|"
                    r"meta tensor|not available for device type meta|Meta' backend|"
                    r"CUDA error|'_OpNamespace' '\w+' object has no attribute|register_meta")
NO_CODE = re.compile(r"does not appear to have a file named \S+\.py|trust_remote_code|"
                     r"can be inspected|failed to be inspected")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
FRAMES = 3
LONGEST = 200
"""Characters of a message that a reason repeats."""


def described(error: BaseException, stage: str, layer: str | None, folder: str, package: str
              ) -> dict[str, Any]:
    """Return the engine's error as the user would see it, without pydantic's wrapping; `folder` is
    the model's place here and named <model>, sources are relative to the folder `package`."""
    frames = [f"{frame.filename.rpartition('/' + package)[2]}:{frame.name}"
              for frame in traceback.extract_tb(error.__traceback__)
              if f"/{package}" in frame.filename]
    text = ADDRESS.sub("", unwrapped(error)).replace(folder, "<model>").strip()
    return {"type": type(error).__name__, "message": text, "stage": stage, "layer": layer,
            "source": frames[-1] if frames else None, "frames": frames[-FRAMES:]}


def unwrapped(error: BaseException) -> str:
    """Return an error's text; of a pydantic error around an exception, that exception's."""
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        for row in error.errors():
            if row["type"] in ("value_error", "assertion_error"):
                return str(row.get("ctx", {}).get("error", row["msg"]))
    return str(error)


def not_the_engines(error: BaseException, text: str, absent: frozenset[str]) -> str | None:
    """Return why an error says nothing about the engine, None where the engine raised it.

    `text` is its message, `absent` are the packages that the question says are not there.
    """
    reasons = (_exhausted(error), _missing(error, absent), _of_a_stand_in(error, text),
               _cut(DEVICE, "it needs a device", text),
               _cut(NO_CODE, "it needs code of the model folder", text))
    return next((reason for reason in reasons if reason), None)


def _exhausted(error: BaseException) -> str | None:
    bounded = isinstance(error, (MemoryError, RecursionError))
    return f"{type(error).__name__} on this machine" if bounded else None


def _missing(error: BaseException, absent: frozenset[str]) -> str | None:
    """An import that fails is the engine's answer where the question says that the package is not
    there."""
    if not isinstance(error, ImportError) or not error.name:
        return None
    if any(f"{error.name}.".startswith(f"{package}.") for package in absent):
        return None
    return f"{error.name} is not importable here: {error}"


def _of_a_stand_in(error: BaseException, text: str) -> str | None:
    if isinstance(error, AttributeError):
        if error.obj is None and "tokenizer." in (_line(error) or ""):
            return "it needs the model's tokenizer"
        if isinstance(error.obj, OURS):
            return f"the stand-in for a GPU machine lacks {error.name}"
        if isinstance(error.obj, ModuleType) and getattr(error.obj, "__file__", None) is None:
            return f"the compiled module {error.obj.__name__} is not loaded"
    met = f"{STAND_IN}." in text or StandIn.__name__ in text
    return f"it met a stand-in for a package: {text[:LONGEST]}" if met else None


def _line(error: BaseException) -> str | None:
    """Return the line of code that raised an error, where its file can be read."""
    return traceback.extract_tb(error.__traceback__)[-1].line


def _cut(pattern: re.Pattern[str], reason: str, text: str) -> str | None:
    return f"{reason}: {text[:LONGEST]}" if pattern.search(text) else None
