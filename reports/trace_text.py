"""What led to a selection, for a person: why not another kernel, and every check on request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice

from quantplan.dispatch.predicates import PASS
from quantplan.dispatch.trace import Candidate, Layer, Selection, Trace
from quantplan.reports.explain_view import rows, star_path
from quantplan.reports.layer_names import Row, short_path, told_apart

SIZE = re.compile(r"(layer\.\w+ is |layer\.\w+ \(|remainder )(\d+)")
"""A size of a layer in the words of a check (dispatch/predicates.py)."""


def why_not_text(trace: Trace, kernel: str) -> str:
    """Return why each layer does not run `kernel`, check by check."""
    told: dict[str, list[str]] = {}
    for layer, _ in rows(trace.layers):
        for candidate in layer.selection.candidates if layer.selection else ():
            if candidate.name == kernel:
                told.setdefault(_told(candidate, layer.selection), []).append(short_path(layer))
    failed = trace.error.selection if trace.error else None
    for candidate in failed.candidates if failed else ():
        if candidate.name == kernel:
            told.setdefault(_told(candidate, failed), []).append(str(trace.error and
                                                                     trace.error.layer))
    if trace.error and not told:
        return f"why not {kernel}: the engine stops at {trace.error.stage}, before it looks at any"
    lines = grouped(told)
    return "\n".join([f"why not {kernel}:", *lines]) if lines else "\n".join([
        f"why not {kernel}: it is in no candidate list of these layers", *_lists(trace)])


def _lists(trace: Trace) -> list[str]:
    """Say which lists the layers do have, and what led there."""
    told: dict[str, list[str]] = {}
    for layer, _ in rows(trace.layers):
        if layer.selection and layer.weighted:
            by = layer.scheme or layer.method
            why = f", because {layer.why}" if layer.why else ""
            told.setdefault(f"list {layer.selection.family}, by {by}{why}", []).append(
                short_path(layer))
    return grouped(told)


def grouped(told: Mapping[str, list[str]]) -> list[str]:
    """Return a line per text, with the layers that it is said of."""
    return [f"  {', '.join(names)}: {text}" for text, names in told.items()]


def _told(candidate: Candidate, selection: Selection | None) -> str:
    checks = [f"    {c.verdict}: {c.text}  [{c.source}]" for c in candidate.checks]
    return "\n".join([_answer(candidate, selection), *checks])


def _answer(candidate: Candidate, selection: Selection | None) -> str:
    chosen = selection.kernel if selection else None
    if selection and candidate is selection.chosen:
        return "it is the one chosen"
    if selection and selection.pinned and not candidate.considered:
        return f"it is not looked at: the engine forces {selection.steps[0].what}"
    if candidate.verdict == PASS:
        return f"it could run, but {chosen} comes first in the list"
    decisive = candidate.decisive
    return f"rejected: {decisive.text}" if decisive else "rejected"


def depth_text(trace: Trace) -> str:
    """Return every step and check that led to the method and the kernels, once for layers that
    differ in their sizes only."""
    lines = ["trace:"]
    for step in trace.method.steps:
        lines.append(f"  {step.kind}: {step.what} ({step.because})  [{step.source}]")
    told: dict[tuple[str, ...], list[tuple[Row, list[str]]]] = {}
    for layer, indices in rows(trace.layers):
        depth = _layer_depth(layer)
        key = tuple(SIZE.sub(r"\1", line) for line in depth)
        told.setdefault(key, []).append(((star_path(layer), indices), depth))
    names = iter(told_apart([row for group in told.values() for row, _ in group], counted=True))
    for group in told.values():
        lines.append(f"  {', '.join(islice(names, len(group)))}")
        lines += map(_of_all, zip(*(depth for _, depth in group), strict=True))
    return "\n".join(lines)


def _of_all(lines: Sequence[str]) -> str:
    """Return one line for lines that differ in sizes only: with the sizes of all."""
    sizes = zip(*([found[2] for found in SIZE.finditer(line)] for line in lines), strict=True)
    told = iter([", ".join(dict.fromkeys(values)) for values in sizes])
    return SIZE.sub(lambda found: found[1] + next(told), lines[0])


def _layer_depth(layer: Layer) -> list[str]:
    by = " ".join(name for name in (layer.method, layer.scheme) if name) or "no method"
    head = f"    {by}" + (f": {layer.why}" if layer.why else "")
    if not layer.selection:
        return [head]
    lines = [head, f"    list {layer.selection.family}"]
    lines += [f"    {s.kind}: {s.what} ({s.because})  [{s.source}]" for s in layer.selection.steps]
    for candidate in layer.selection.candidates:
        mark = "->" if candidate is layer.selection.chosen else "  "
        verdict = candidate.verdict if candidate.considered else (
            f"would {candidate.verdict}; the engine stops before it")
        lines.append(f"    {mark} {candidate.kernel}: {verdict}")
        lines += [f"         {c.verdict}: {c.text}  [{c.source}]" for c in candidate.checks]
    if layer.tuned:
        where = "in the wheel" if layer.tuned.there else "not in the wheel"
        lines.append(f"    tuned tile sizes: {layer.tuned.name}, {where}")
    return lines
