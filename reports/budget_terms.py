"""What a start-up log printed next to what the budget predicted: one term each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quantplan.planner.lines import UNKNOWN
from quantplan.reports.startup_log import StartupLog
from quantplan.tables.record import NamedTuple

GIB_BYTES = 2**30
PRINTED_GIB = 0.005
"""Half of the last digit that engines print."""


class Tolerance(NamedTuple):
    """How far two figures may be apart: the larger of an amount and a share of the printed one."""

    amount: float
    share: float


TOLERANCES = {
    "engine memory": Tolerance(0.02, 0.001),
    "weights": Tolerance(0.02, 0.005),
    "plain weights": Tolerance(0.02, 0.001),
    "weights by the driver": Tolerance(0.20, 0.005),
    "activations": Tolerance(0.15, 0.10),
    "non-torch memory": Tolerance(0.15, 0.25),
    "CUDA graphs, estimated": Tolerance(0.90, 0.50),
    "KV cache memory": Tolerance(0.30, 0.01),
    "KV tokens": Tolerance(0, 0.01),
    "maximum concurrency": Tolerance(0.01, 0.01),
    "KV tokens of the printed memory": Tolerance(0, 0.0),
}
"""Term -> tolerance, in the term's unit: weights, plain where they are 16 bits or more and without
experts, as exactly as they are meant to be; by the driver where the engine prints what the GPU's
free memory lost (SGLang), which has kernels in it; the others as constants of one GPU leave them
open."""
PLAIN = ("bf16", "fp16", "fp32")


class Term(NamedTuple):
    """One figure, predicted and printed, in `unit`: GiB, tokens or x; `worker` printed it."""

    name: str
    unit: str
    predicted: float | None
    printed: float | None
    tolerance: float
    worker: str | None = None

    @property
    def gap(self) -> float | None:
        """Return predicted minus printed, None where one of them is missing."""
        if self.predicted is None or self.printed is None:
            return None
        return self.predicted - self.printed

    @property
    def agrees(self) -> bool | None:
        """Return whether the two agree, None where one of them is missing."""
        return None if self.gap is None else abs(self.gap) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Return the term as plain data."""
        return {**self._asdict(), "gap": self.gap, "agrees": self.agrees}


def budget_terms(log: StartupLog, found: Any) -> tuple[Term, ...]:
    """Return the terms that the log printed, or that were predicted; `found` is an engine's budget.

    Where workers differ, the printed figure is the largest one, of the KV cache the smallest: that
    is the worker that the engine goes by.
    """
    printed, predicted = _printed(log), _predicted(found)
    terms = _scaled([_term(name, predicted.get(name), printed.get(name), log,
                           _tolerance(name, found)) for name in UNITS])
    given = _tokens_of_printed_memory(log, found)
    return tuple(t for t in (*terms, *given) if t.printed is not None)


def _scaled(terms: list[Term]) -> list[Term]:
    """Return the terms with the tolerance of the KV cache's memory also in its tokens."""
    memory = next(term for term in terms if term.name == "KV cache memory")
    printed = memory.printed or 0
    share = memory.tolerance / printed if printed > 0 else 0
    return [term._replace(tolerance=max(term.tolerance, share * (term.printed or 0)))
            if term.name in ("KV tokens", "maximum concurrency") else term for term in terms]


UNITS = {"engine memory": "GiB", "weights": "GiB", "activations": "GiB", "non-torch memory": "GiB",
         "CUDA graphs, estimated": "GiB", "KV cache memory": "GiB", "KV tokens": "tokens",
         "maximum concurrency": "x"}
FIGURES = {"engine memory": "engine_memory_gib", "weights": "weights_gib"}


def _term(
    name: str, predicted: tuple[float, float] | None, printed: float | None, log: StartupLog,
    allowed: Tolerance,
) -> Term:
    value, plus_minus = predicted if predicted is not None else (None, 0.0)
    tolerance = max(allowed.amount, allowed.share * abs(printed or 0), plus_minus)
    worker = None
    if name in FIGURES and len(set(log.values(FIGURES[name]))) > 1:
        by = log.by_worker(FIGURES[name])
        worker = next((who for who, each in by.items() if each == printed), None)
    return Term(name, UNITS[name], value, printed, tolerance, worker)


def _tolerance(name: str, found: Any) -> Tolerance:
    if name == "weights" and not hasattr(found, "engine_memory"):
        return TOLERANCES["weights by the driver"]
    plain = found.weights.title in PLAIN and not any(
        "expert" in line.name for line in found.weights.lines)
    return TOLERANCES["plain weights" if name == "weights" and plain else name]


def _printed(log: StartupLog) -> dict[str, float | None]:
    weights, graphs = log.most("weights_gib"), log.most("graphs_gib")
    counted = graphs if graphs and log.text("graphs_counted") else 0.0
    peak, consumed = log.most("peak_gib"), log.most("consumed_gib")
    activations, non_torch = log.most("activations_gib"), log.most("non_torch_gib")
    if activations is None and peak is not None:
        activations = peak - counted
    if non_torch is None and consumed is not None and weights is not None:
        non_torch = consumed - weights
    return {"engine memory": log.most("engine_memory_gib"), "weights": weights,
            "activations": activations, "non-torch memory": non_torch,
            "CUDA graphs, estimated": graphs, "KV cache memory": _kv_memory(log),
            "KV tokens": log.least("kv_tokens"), "maximum concurrency": log.least("concurrency_x")}


def _kv_memory(log: StartupLog) -> float | None:
    """Return what is there for the KV cache; SGLang prints keys and values apart."""
    keys, values = log.least("k_gib"), log.least("v_gib")
    return keys + values if keys is not None and values is not None else log.least("kv_gib")


def _predicted(found: Any) -> dict[str, tuple[float, float]]:
    """Return term -> predicted figure and how far it may be off; without those that are not
    known."""
    terms: dict[str, tuple[float, float]] = {
        "weights": _weights(found),
        "KV cache memory": (found.kv_bytes / GIB_BYTES, 0.0),
        "KV tokens": (found.kv_tokens, 0.0)}
    if getattr(found, "graphs", None) is not None:
        terms["CUDA graphs, estimated"] = (found.graphs.bytes / GIB_BYTES,
                                           found.graphs.plus_minus_bytes / GIB_BYTES)
    if hasattr(found, "engine_memory"):
        terms |= {"engine memory": (found.engine_memory.bytes / GIB_BYTES, 0.0),
                  "maximum concurrency": (found.max_concurrency, 0.0), **_overheads(found)}
    return terms


def _weights(found: Any) -> tuple[float, float]:
    """Return the weights as the engine prints them: SGLang prints what loading them took."""
    size, plus_minus = getattr(found, "loaded", (found.weights.bytes, 0))
    return size / GIB_BYTES, plus_minus / GIB_BYTES


def _overheads(found: Any) -> dict[str, tuple[float, float]]:
    lines: dict[str, list[Any]] = {}
    for line in found.overheads:
        name = line.name if line.name in UNITS else "activations"
        lines.setdefault(name, []).append(line)
    return {name: (sum(line.bytes for line in each) / GIB_BYTES,
                   sum(line.plus_minus_bytes for line in each) / GIB_BYTES)
            for name, each in lines.items() if all(line.kind != UNKNOWN for line in each)}


def _tokens_of_printed_memory(log: StartupLog, found: Any) -> Iterator[Term]:
    """Yield the tokens that the printed KV memory holds by our rules: only the cache's layout and
    the rounding of the printed figure are left to differ."""
    memory, tokens = log.least("kv_gib"), log.least("kv_tokens")
    if memory is None or tokens is None or memory <= 0 or not hasattr(found, "kv"):
        return
    sizes = [int((memory + side * PRINTED_GIB) * GIB_BYTES) for side in (-1, 0, 1)]
    least, middle, most = (found.kv.printed_tokens(size, found.max_model_len) for size in sizes)
    slack = max(most - middle, middle - least) + found.kv.block_tokens
    yield Term("KV tokens of the printed memory", "tokens", middle, tokens, slack)


def printed_terms(log: StartupLog) -> tuple[Term, ...]:
    """Return what the log printed, with nothing predicted."""
    printed = _printed(log)
    return tuple(_term(name, None, printed[name], log, TOLERANCES[name]) for name in UNITS
                 if printed[name] is not None)
