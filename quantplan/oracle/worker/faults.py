"""Whose error it is: the engine's, or of what stands in for a GPU machine here."""

from __future__ import annotations

import re
import traceback
from types import ModuleType
from typing import Any

from quantplan.oracle.worker.device import Nothing
from quantplan.oracle.worker.groups import Group
from quantplan.oracle.worker.packages import PACKAGES
from quantplan.oracle.worker.stand_ins import STAND_IN, StandIn, StandInModule, StandInType

OURS = (Nothing, Group, StandIn, StandInModule, StandInType)
DEVICE = re.compile(r"Torch not compiled with CUDA|No CUDA GPUs|NVIDIA driver|libcuda|"
                    r"meta tensor|not available for device type meta|Meta' backend|"
                    r"CUDA error|'_OpNamespace' '\w+' object has no attribute")
NO_CODE = re.compile(r"does not appear to have a file named \S+\.py|trust_remote_code|"
                     r"can be inspected|failed to be inspected")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
FRAMES = 3


def described(error: BaseException, stage: str, layer: str | None, folder: str) -> dict[str, Any]:
    """Return the engine's error as the user would see it, without pydantic's wrapping; `folder` is
    the model's place here and named <model>."""
    frames = [f"{frame.filename.rpartition('/vllm/')[2]}:{frame.name}"
              for frame in traceback.extract_tb(error.__traceback__) if "/vllm/" in frame.filename]
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

    `text` is its message, `absent` are the libraries that the question says are not there.
    """
    if isinstance(error, (MemoryError, RecursionError)):
        return f"{type(error).__name__} here"
    if isinstance(error, ImportError) and error.name:
        return _missing(error, absent)
    if isinstance(error, AttributeError) and isinstance(error.obj, (*OURS,)):
        return f"the stand-in for a GPU machine lacks {error.name}"
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) \
            and getattr(error.obj, "__file__", None) is None:
        return f"the compiled module {error.obj.__name__} is not loaded"
    if STAND_IN + "." in text or any(kind.__name__ in text for kind in OURS):
        return "it met a stand-in for a package"
    if DEVICE.search(text):
        return f"it needs a device: {text[:200]}"
    if NO_CODE.search(text):
        return f"it needs code of the model folder: {text[:200]}"
    return None


def _missing(error: ImportError, absent: frozenset[str]) -> str | None:
    name = str(error.name)
    for library in absent:
        if any(name == package or name.startswith(package + ".")
               for package in PACKAGES.get(library, (library,))):
            return None
    return f"{name} is not importable here: {error}"
