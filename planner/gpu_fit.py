"""Which GPUs a model fits: one budget per GPU and engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantplan.dispatch.facts import Gpu
from quantplan.planner.memory_question import MemoryQuestion, attempt
from quantplan.tables.record import NamedTuple


class Fit(NamedTuple):
    """One engine version on one GPU: tokens of KV cache where it starts, else why it does not."""

    engine: str
    version: str
    gpu: Gpu
    kv_tokens: int | None = None
    largest_context: int | None = None
    problem: str | None = None


def gpu_fits(questions: Sequence[MemoryQuestion], gpus: Sequence[Gpu]) -> tuple[Fit, ...]:
    """Return each question's answer on each GPU whose memory is known, GPU by GPU."""
    return tuple(_fits(questions, [gpu for gpu in gpus if gpu.memory_bytes is not None]))


def _fits(questions: Sequence[MemoryQuestion], gpus: Sequence[Gpu]) -> Iterator[Fit]:
    for gpu in gpus:
        for question in questions:
            yield _fit(question._replace(gpu=gpu, gpu_mem=None))


def _fit(question: MemoryQuestion) -> Fit:
    found, gpu = attempt(question, {}), question.gpu
    assert gpu is not None
    fit = Fit(question.table["engine"], question.table["version"], gpu, problem=found.problem)
    budget = found.budget
    if budget is None or found.problem:
        return fit
    if not budget.fits:
        return fit._replace(problem=f"{budget.missing_bytes / 2**30:.1f} GiB are missing")
    return fit._replace(kv_tokens=budget.kv_tokens, largest_context=budget.largest_context)
