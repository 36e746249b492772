"""The layers of an explanation as a table for a person: those that behave alike in one line."""

from __future__ import annotations

from collections import Counter

from quantplan.dispatch.trace import Layer, Trace
from quantplan.reports.columns import columns
from quantplan.reports.explain_view import rows
from quantplan.reports.layer_names import short_path, told_apart


def layer_table(trace: Trace, tp: int) -> str:
    """Return a line per path, size, kernel and mode, with how many layers it stands for."""
    found: dict[tuple[str, ...], list[int]] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for layer, indices in rows(trace.layers):
        row = _row(layer, trace)
        found.setdefault(row, []).extend(indices)
        counts[row] += len(indices) or 1
    names = told_apart([(path, indices) for (path, *_), indices in found.items()])
    lines = [(name, str(counts[row]), *row[1:]) for name, row in zip(names, found, strict=True)]
    size = "N x K per rank" if tp > 1 else "N x K"
    return columns(lines, ("layer", "count", size, "kernel", "mode"), "lrrll")


def _row(layer: Layer, trace: Trace) -> tuple[str, ...]:
    size = f"{layer.n} x {layer.k}" if layer.n else ""
    kernel = layer.kernel or layer.attn_backend or _path(layer)
    mode = mode_of(layer, trace) if layer.weighted else _kv(layer, trace)
    return short_path(layer), size, kernel, mode


def _kv(layer: Layer, trace: Trace) -> str:
    if layer.kv_cache_dtype is None:
        return ""
    dtype = trace.dtype if layer.kv_cache_dtype == "auto" else layer.kv_cache_dtype
    prefill = f", prefill {layer.prefill_backend}" if layer.prefill_backend else ""
    return f"KV {dtype}{prefill}"


def mode_of(layer: Layer, trace: Trace) -> str:
    """Return a layer's mode; that of 16 or 32 bits where no kernel was selected."""
    plain = "W32A32" if trace.dtype == "float32" else "W16A16"
    return layer.mode or ("unknown" if layer.selection else plain)


def _path(layer: Layer) -> str:
    if layer.selection:
        return "not known from here"
    if layer.method == "AutoAWQLinearMethod":
        return "AutoAWQLinearMethod (Triton AWQ)"
    method = layer.method or ""
    return "unquantized" if method.startswith("Unquantized") else method
