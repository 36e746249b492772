"""The layers of a model that was built, as data: what serves each, and what was turned down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from quantplan.oracle.worker.vllm.modes import mode_of
from quantplan.oracle.worker.vllm.watch import Note, Watch

KERNEL_BASE = re.compile(r"(MP|MM|ScaledMM|NvFp4|MxFp4|MxFp6|Mxfp8)LinearKernel")
HOLDERS = ("scheme", "quant_method", "base_method", "linear_method", "inc_scheme", "impl", "_impl",
           "method", "gptq_method", "awq_method", "inner")
"""Attributes through which a quantization method reaches the object that holds its kernel."""
DEEPEST = 3
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def layers_of(model: Any, watch: Watch) -> list[dict[str, Any]]:
    """Return one row per layer that selection has a say in, in module order."""
    return [row_of(path, layer, watch) for path, layer in model.named_modules()
            if type(layer).__name__ != "FusedMoEModularMethod"
            and (getattr(layer, "quant_method", None) is not None
                 or hasattr(layer, "attn_backend") or hasattr(layer, "get_attn_backend"))]


def row_of(path: str, layer: Any, watch: Watch) -> dict[str, Any]:
    """Return what one layer became."""
    method = getattr(layer, "quant_method", None)
    scheme = getattr(layer, "scheme", None)
    kernel = find_kernel(method) or find_kernel(scheme)
    notes = watch.of(layer)
    row = {"path": path, "module": type(layer).__name__, "method": name_of(method),
           "scheme": name_of(scheme), "kernel": name_of(kernel),
           "mode": None if kernel is None else mode_of(kernel, layer)}
    row |= _sizes(layer) | _selection(notes, row["kernel"]) | _experts(method, scheme, notes)
    return row | _attention(layer, watch)


def name_of(thing: Any) -> str | None:
    """Return the name of a thing's class, or of a class."""
    if thing is None or isinstance(thing, type):
        return None if thing is None else thing.__name__
    return type(thing).__name__


def find_kernel(holder: Any, depth: int = 0) -> Any:
    """Return the kernel object that a method or scheme holds, directly or through another."""
    if not hasattr(holder, "__dict__"):
        return None
    for value in vars(holder).values():
        if any(KERNEL_BASE.fullmatch(base.__name__) for base in type(value).__mro__):
            return value
    if depth < DEEPEST:
        for name in HOLDERS:
            kernel = find_kernel(vars(holder).get(name), depth + 1)
            if kernel is not None:
                return kernel
    return None


def _sizes(layer: Any) -> dict[str, Any]:
    k, n = (getattr(layer, f"{side}_per_partition", getattr(layer, side, None))
            for side in ("input_size", "output_size"))
    whole = k is not None and n is not None
    return {"k": k and int(k), "n": n and int(n)} if whole else {"k": None, "n": None}


def _selection(notes: list[Note], chosen: str | None) -> dict[str, Any]:
    """Return the last candidate list and why each candidate in front of the choice was not it."""
    last = next((note for note in reversed(notes) if note.kind == "list"), None)
    names = last.names if last else ()
    return {"family": last.name if last else None, "candidates": list(names),
            "rejected": list(rejected(names, notes, chosen))}


def rejected(names: tuple[str, ...], notes: list[Note], chosen: str | None
             ) -> Iterator[list[str | None]]:
    """Yield [kernel, the engine's reason] in order: all in front of the choice. No reason where
    the kernel itself was not asked: it is disabled, the device or the scheme is not its own."""
    failed = {note.name: note.reason for note in reversed(notes)
              if note.kind == "kernel" and not note.passed}
    for name in names if chosen is None or chosen in names else ():
        if name == chosen:
            break
        yield [name, failed.get(name)]
    for name, reason in failed.items():
        if name not in names:  # forced by a flag and tried outside the list
            yield [name, reason]


def _experts(method: Any, scheme: Any, notes: list[Note]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for holder in (method, scheme):
        for name, value in getattr(holder, "__dict__", {}).items():
            if name == "experts_cls":
                found["class"] = name_of(value)
            elif name.endswith("_backend") and value is not None:
                found.setdefault("backend", getattr(value, "name", str(value)))
    turned_down = [[note.name, note.reason] for note in notes
                   if note.kind == "experts" and not note.passed]
    if "class" not in found and not turned_down:
        return {}
    return {"experts": {"class": None, "backend": None, **found, "rejected": turned_down}}


def _attention(layer: Any, watch: Watch) -> dict[str, Any]:
    backend = getattr(layer, "attn_backend", None)
    if any(hasattr(child, "attn_backend") for child in list(layer.modules())[1:]):
        return {}  # it only passes its backend on
    if backend is None and hasattr(layer, "get_attn_backend"):
        with suppress(Exception):
            backend = layer.get_attn_backend()
    if backend is None:
        return {}
    name = backend.get_name() if hasattr(backend, "get_name") else getattr(
        backend, "name", ADDRESS.sub("", str(backend)))
    turned_down = {note.name: note.reason for note in watch.notes if note.kind == "attention"}
    return {"attn_backend": name, "kv_cache_dtype": getattr(layer, "kv_cache_dtype", None),
            "prefill_backend": name_of(getattr(layer, "prefill_backend", None)),
            "rejected": [list(pair) for pair in turned_down.items()]}
