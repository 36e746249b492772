"""A matrix of answers for a person: GPUs served alike share a column, reasons below."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from quantplan.dispatch.facts import Gpu
from quantplan.dispatch.summary import Part
from quantplan.planner.matrix import Cell, Matrix
from quantplan.reports.columns import GAP, columns
from quantplan.reports.naming import engine_named
from quantplan.reports.question import deployment_words, model_words

SHOWN_SHARE = 1 / 20
"""Least share of an engine's linear weights or experts that a cell names a part for."""
LONGEST_REASON = 400
"""Characters of a reason below the matrix."""
NUMBER = re.compile(r"\d+(\.\d+)?")
SHOWN_BACKENDS = 2
"""Attention backends that a cell names."""
SHOWN_GPUS = 5
"""GPUs that a column's head names; of others, how many there are."""
STARTS = {"yes": "yes", "no": "no", "conditional": "conditional", "unknown": "not known"}

Column = tuple[list[Gpu], list[Cell]]
"""GPUs that every engine serves alike, and each engine's cell."""


def matrix_text(matrix: Matrix, width: int) -> str:
    """Return the whole text, ending in a newline; columns beyond `width` characters go into a
    block below."""
    told = _columns(matrix)
    reasons = _reasons(told)
    numbers = {kind: f" [{i}]" for i, kind in enumerate(reasons, 1)}
    asked = [model_words(matrix.checkpoint), f"tp {matrix.deployment.tp}",
             *deployment_words(matrix.deployment)]
    rows = _rows(told, numbers)
    parts = [", ".join(asked), *_blocks(rows, width)]
    parts.append("\n".join(f"  [{i}] {who}: {_cut(text)}"
                           for i, (who, text) in enumerate(reasons.values(), 1)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _columns(matrix: Matrix) -> list[Column]:
    """Return the columns, neighbours in order of the question that are served alike as one."""
    found: list[Column] = []
    for i, gpu in enumerate(matrix.gpus):
        cells = list(matrix.cells[i::len(matrix.gpus)])
        if found and all(map(_alike, found[-1][1], cells)):
            found[-1][0].append(gpu)
        else:
            found.append(([gpu], cells))
    return found


def _alike(one: Cell, other: Cell) -> bool:
    return one.starts == other.starts and _kind(one) == _kind(other) and all(
        line(one) == line(other) for _, line in LINES)


def _kind(cell: Cell) -> str:
    """Return the reason without its numbers: those of the GPU stand in many."""
    return NUMBER.sub("#", cell.reason or "")


def _reasons(told: Sequence[Column]) -> dict[str, tuple[str, str]]:
    """Return kind of reason -> which engines it is said of where, and the reason."""
    found: dict[str, tuple[dict[str, list[str]], str]] = {}
    for gpus, cells in told:
        for cell in cells:
            if cell.reason is not None:
                who, _ = found.setdefault(_kind(cell), ({}, cell.reason))
                who.setdefault(engine_named(cell.engine, cell.version), []).append(_span(gpus))
    return {kind: ("; ".join(f"{engine} on {', '.join(spans)}" for engine, spans in who.items()),
                   reason) for kind, (who, reason) in found.items()}


def _rows(told: Sequence[Column], numbers: dict[str, str]) -> list[list[str]]:
    """Return the table: a head of one or several lines, then each engine's lines."""
    heads = [_head(gpus) for gpus, _ in told]
    depth = max(map(len, heads))
    rows = [["", "", *(head[i] if i < len(head) else "" for head in heads)] for i in range(depth)]
    for e, first in enumerate(told[0][1]):
        name = engine_named(first.engine, first.version)
        starts = [STARTS[cells[e].starts] + numbers.get(_kind(cells[e]), "")
                  for _, cells in told]
        rows.append([name, "starts", *starts])
        for label, line in LINES:
            cells_of = [line(cells[e]) for _, cells in told]
            if any(cells_of):
                rows.append(["", label, *cells_of])
    return rows


def _head(gpus: Sequence[Gpu]) -> list[str]:
    if all(gpu.origin == "capability" for gpu in gpus):
        return [_span(gpus)]
    shown, rest = _few([f"{gpu.id or gpu.name} ({gpu.capability_text})" for gpu in gpus])
    return [*shown, rest] if rest else shown


def _span(gpus: Sequence[Gpu]) -> str:
    """Return "8.0 to 8.7", or the names of GPUs that were asked by name."""
    if all(gpu.origin == "capability" for gpu in gpus):
        first, last = gpus[0].capability_text, gpus[-1].capability_text
        return first if first == last else f"{first} to {last}"
    shown, rest = _few([gpu.id or gpu.name for gpu in gpus])
    return f"{', '.join(shown)} {rest}".rstrip()


def _few(names: list[str]) -> tuple[list[str], str]:
    """Return the first names, and of others how many there are."""
    more = len(names) - SHOWN_GPUS
    return names[:SHOWN_GPUS], f"and {more} more" if more > 0 else ""


def _parts(parts: Sequence[Part]) -> str:
    """Return the parts that hold a share worth naming, most weights first."""
    whole = sum(part.weights for part in parts)
    return " + ".join(dict.fromkeys(part.words for part in parts
                                    if part.weights >= SHOWN_SHARE * whole))


LINES: Sequence[tuple[str, Callable[[Cell], str]]] = (
    ("linear", lambda cell: _parts(cell.linear)),
    ("experts", lambda cell: _parts(cell.experts)),
    ("KV", lambda cell: cell.kv_cache or ""),
    ("attention", lambda cell: ", ".join(cell.attention[:SHOWN_BACKENDS]) + (
        " ..." if len(cell.attention) > SHOWN_BACKENDS else "")))
"""What a cell says line by line."""


def _blocks(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the rows as tables of at most `width` characters, at least one GPU each."""
    sizes = [max(len(row[i]) for row in rows) + len(GAP) for i in range(len(rows[0]))]
    start = 2
    while start < len(sizes):
        end, used = start + 1, sum(sizes[:2]) + sizes[start]
        while end < len(sizes) and used + sizes[end] <= width:
            used += sizes[end]
            end += 1
        yield columns([[*row[:2], *row[start:end]] for row in rows])
        start = end


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."
