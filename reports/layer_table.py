"""The layers of one or several explanations as a table for a person: those that behave alike in one
line, engines side by side."""

from __future__ import annotations

from collections.abc import Sequence

from quantplan.dispatch.joined import Joined, joined
from quantplan.dispatch.summary import mode_of
from quantplan.dispatch.trace import Layer, Trace
from quantplan.reports.columns import columns
from quantplan.reports.layer_names import short_path, told_apart

KERNEL_WORDS = {"vllm": "kernel", "sglang": "operator"}
"""What an engine's products are called."""


def layer_table(traces: Sequence[Trace], tp: int, names: Sequence[str] = ()) -> str:
    """Return a line per path, size, and each trace's kernel and mode, with how many layers it
    stands for; `names` are the engines', where there are several."""
    found: dict[tuple[str, ...], list[int]] = {}
    counts: dict[tuple[str, ...], int] = {}
    for place in joined(traces):
        row = _row(place, traces)
        indices = found.setdefault(row, [])
        if place.first.layer_index is not None:
            indices.append(place.first.layer_index)
        counts[row] = counts.get(row, 0) + 1
    paths = told_apart([(path, indices) for (path, *_), indices in found.items()])
    lines = [(path, str(counts[row]), *row[1:]) for path, row in zip(paths, found, strict=True)]
    size = "N x K per rank" if tp > 1 else "N x K"
    heads = [head for i, trace in enumerate(traces)
             for head in (f"{names[i]} {KERNEL_WORDS[trace.engine]}" if names else "kernel",
                          "mode")]
    return columns(lines, ("layer", "count", size, *heads), "lrr")


def _row(place: Joined, traces: Sequence[Trace]) -> tuple[str, ...]:
    first = place.first
    size = f"{first.n} x {first.k}" if first.n else ""
    cells = [cell for layer, trace in zip(place.layers, traces, strict=True)
             for cell in (("", "") if layer is None else _cells(layer, trace))]
    return short_path(first), size, *cells


def _cells(layer: Layer, trace: Trace) -> tuple[str, str]:
    kernel = layer.kernel or layer.attn_backend or _path(layer)
    kernel += f" ({layer.kernel_backend})" if layer.kernel_backend else ""
    return kernel, mode_of(layer, trace) if layer.weighted else _kv(layer, trace)


def _kv(layer: Layer, trace: Trace) -> str:
    if layer.kv_cache_dtype is None:
        return ""
    dtype = trace.dtype if layer.kv_cache_dtype == "auto" else layer.kv_cache_dtype
    prefill = f", prefill {layer.prefill_backend}" if layer.prefill_backend else ""
    return f"KV {dtype}{prefill}"


def _path(layer: Layer) -> str:
    if layer.selection:
        return "not known from here"
    if layer.method == "AutoAWQLinearMethod":
        return "AutoAWQLinearMethod (Triton AWQ)"
    method = layer.method or ""
    return "unquantized" if method.startswith("Unquantized") else method
