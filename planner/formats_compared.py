"""What another format of the same model would buy on this GPU: memory, and which mode it gets."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.planner.memory_question import Attempt, MemoryQuestion, attempt
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple

KV_FP8 = {"vllm": "fp8", "sglang": "fp8_e4m3"}
"""Engine -> --kv-cache-dtype of an FP8 cache."""
WEIGHT_ONLY = "W{bits}A16"
BITS = ("4", "8")
"""Bits of the weights of weight-only modes."""


class FormatRow(NamedTuple):
    """One format with one KV cache dtype; `problem` is why it has no figures or does not start.

    `modes` names mode and kernels of linear layers and experts on the GPU asked about, None
    without one; `weight_only` that their arithmetic stays in 16 bits, so that the saved memory buys
    no speed where arithmetic is the limit.
    """

    format: str
    kv_cache_dtype: str
    weight_bytes: int | None = None
    kv_tokens: int | None = None
    modes: str | None = None
    weight_only: bool = False
    problem: str | None = None


def formats_compared(question: MemoryQuestion) -> tuple[FormatRow, ...]:
    """Return the model as it is and in every usual format, each with the KV cache dtype asked for
    and with FP8. A format that has no bytes here, or that the engine refuses, says so."""
    return tuple(_rows(question))


def _rows(question: MemoryQuestion) -> Iterator[FormatRow]:
    asked = question.deployment.kv_cache_dtype
    fp8 = KV_FP8[question.table["engine"]]
    for name in ("as asked", *read_table("levers/levers")["formats"]):
        changes = {} if name == "as asked" else {"as_format": name}
        for dtype in dict.fromkeys((asked, fp8)):
            yield _row(name, dtype, attempt(question, {**changes, "kv_cache_dtype": dtype}))


def _row(name: str, dtype: str, found: Attempt) -> FormatRow:
    row = FormatRow(name, dtype, problem=found.problem)
    if found.budget is None:
        return row
    modes = None if found.problem else found.question.modes()
    row = row._replace(weight_bytes=found.budget.weights.bytes, modes=modes,
                       weight_only=modes is not None and is_weight_only(modes))
    if found.problem:
        return row
    if not found.budget.fits:
        return row._replace(problem="does not fit")
    return row._replace(kv_tokens=found.budget.kv_tokens)


def is_weight_only(modes: str) -> bool:
    """Return whether linear layers and experts all keep 16-bit activations, some under smaller
    weights."""
    named = [part.split()[0] for part in modes.split(", experts ")]
    smaller = {WEIGHT_ONLY.format(bits=bits) for bits in BITS}
    return bool(smaller.intersection(named)) and all(mode.endswith("A16") for mode in named)
