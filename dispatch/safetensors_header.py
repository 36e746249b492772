"""Headers of safetensors files: names, dtypes and shapes, validated by the safetensors library."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from types import ModuleType
from typing import Any

from quantplan.dispatch.facts import Tensor
from quantplan.dispatch.regular_file import refuse_lfs_pointer, shown, size_bytes, unreadable
from quantplan.tables.errors import CheckpointError

# Source: safetensors 0.8.0 `Dtype`.
DTYPES = frozenset(
    (
        *("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"),
        *("F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E5M2", "F8_E8M0"),
        *("F8_E4M3FNUZ", "F8_E5M2FNUZ", "F16", "BF16", "F32", "F64", "C64"),
    )
)
# Source: safetensors 0.8.0 `MAX_HEADER_SIZE`.
HEADER_LIMIT_BYTES = 100_000_000
LENGTH_BYTES = 8


def read_header(
    path: str, shared: dict[Tensor, Tensor] | None = None, *, name: str | None = None
) -> dict[str, Tensor]:
    """Return {tensor name: dtype and shape} of one safetensors file; no weight is read.

    `shared` lets equal tensors of many files be one object; `name` stands for the path in errors.
    Raises CheckpointError: not a regular file, a Git LFS pointer, truncated, or a header that
    contradicts itself or the file's size.
    """
    name = name or path
    size = size_bytes(path)
    refuse_lfs_pointer(path, size, name)
    from safetensors import SafetensorError

    try:
        _check_length(path, name, size)
        with _open(path) as file:
            return _tensors(file, {} if shared is None else shared)
    except SafetensorError as error:
        raise _refusal(path, name, size, str(error)) from None
    except OSError as error:
        raise unreadable(name, error) from None


def _open(path: str) -> Any:
    from safetensors import safe_open

    with _numpy_stand_in():
        return safe_open(path, framework="np")


def _tensors(file: Any, shared: dict[Tensor, Tensor]) -> dict[str, Tensor]:
    view_of, tensors = file.get_slice, {}
    for name in file.keys():  # noqa: SIM118 (the library's file is no mapping)
        view = view_of(name)
        tensor = Tensor(view.get_dtype(), tuple(view.get_shape()))
        tensors[name] = shared.setdefault(tensor, tensor)
    return tensors


def _check_length(path: str, name: str, size: int) -> None:
    """Raise unless the length in the first 8 bytes fits the limit and the file."""
    with open(path, "rb") as file:
        head = file.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        raise CheckpointError(
            f"{shown(name)} is not a safetensors file",
            wanted=f"at least {LENGTH_BYTES} bytes",
            found=f"{size} bytes",
        )
    length = int.from_bytes(head, "little")
    if length > HEADER_LIMIT_BYTES:
        raise CheckpointError(
            f"{shown(name)} is not a safetensors file, or its header is damaged",
            wanted=f"a header of at most {HEADER_LIMIT_BYTES:,} bytes",
            found=f"a header length of {length:,}",
        )
    if LENGTH_BYTES + length > size:
        raise _truncated(name, LENGTH_BYTES + length, size)


def _refusal(path: str, name: str, size: int, reason: str) -> CheckpointError:
    """Return the library's refusal as one line, with both sizes where the size is the fault."""
    declared = _declared_bytes(path)
    if declared is not None and declared > size:
        return _truncated(name, declared, size)
    if declared is not None and declared < size:
        return CheckpointError(
            f"{shown(name)} is longer than its header says",
            wanted=f"{declared:,} bytes",
            found=f"{size:,} bytes",
            hint="Fetch the file again.",
        )
    reason = reason.removeprefix("Error while deserializing header: ")
    return CheckpointError(f"{shown(name)} has a bad safetensors header", found=ascii(reason)[1:-1])


def _truncated(name: str, declared: int, size: int) -> CheckpointError:
    return CheckpointError(
        f"{shown(name)} is truncated",
        wanted=f"the {declared:,} bytes that its header declares",
        found=f"{size:,} bytes",
        hint="Fetch the file again.",
    )


def _declared_bytes(path: str) -> int | None:
    """Return the file size in bytes that a refused header declares, None when it is unreadable."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        ends = [int(max(tensor["data_offsets"])) for tensor in header.values()]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return LENGTH_BYTES + length + max(ends, default=0)


_STAND_IN = Lock()


class _LateNumpy(ModuleType):
    """An empty module that hands every question to the real numpy, once it is no longer in place.

    The library keeps the module it imported first for the life of the process, so that a caller
    who loads real tensors later must reach the real numpy through this one.
    """

    def __getattr__(self, name: str) -> Any:
        import importlib

        numpy = importlib.import_module("numpy")
        if numpy is self:
            raise AttributeError(name)
        return getattr(numpy, name)


@contextmanager
def _numpy_stand_in() -> Iterator[None]:
    """Let safetensors open a file without importing numpy.

    `safe_open(framework="np")` imports numpy when it opens, though dtypes and shapes need none of
    it, and numpy costs more than the whole command. While a file is opened an empty module stands
    in; it is gone afterwards, and a numpy that is already there is left alone.
    """
    with _STAND_IN:
        if "numpy" in sys.modules:
            yield
            return
        stand_in = _LateNumpy("numpy")
        sys.modules["numpy"] = stand_in
        try:
            yield
        finally:
            if sys.modules.get("numpy") is stand_in:
                del sys.modules["numpy"]
