"""How a number of GPUs can share a model: tensor, pipeline, expert and data parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.planner.memory_question import MemoryQuestion, attempt
from quantplan.tables.record import NamedTuple

REPLICAS_APART = "sglang"
"""The engine whose data parallel replicas are servers of their own, alike in memory (sglang 0.5.22
srt/managers/data_parallel_controller.py); its expert parallelism is not tried."""


class Choice(NamedTuple):
    """One way to use all GPUs; tokens are those of all replicas together, `problem` is why the
    engine does not start or why the figures are not known."""

    tp: int
    pp: int
    dp: int
    expert_parallel: bool
    weight_bytes: int | None = None
    kv_tokens: int | None = None
    modes: str | None = None
    problem: str | None = None

    @property
    def words(self) -> str:
        """Return it as the engine's flags."""
        sizes = ((name, size) for name, size in (("tp", self.tp), ("pp", self.pp),
                                                 ("dp", self.dp)) if size > 1)
        named = " ".join(f"{name} {size}" for name, size in sizes) or "tp 1"
        return f"{named} ep" if self.expert_parallel else named


def choices(question: MemoryQuestion, gpus: int) -> tuple[Choice, ...]:
    """Return every way in which `gpus` GPUs share the model, those with most tokens first, those
    that do not start last."""
    experts = question.table["engine"] != REPLICAS_APART and _has_experts(question)
    found = [_tried(question, choice) for choice in _ways(gpus, experts)]
    return tuple(sorted(found, key=lambda choice: (choice.problem is not None,
                                                   -(choice.kv_tokens or 0))))


def _ways(gpus: int, experts: bool) -> Iterator[Choice]:
    for tp in _divisors(gpus):
        for pp in _divisors(gpus // tp):
            dp = gpus // tp // pp
            yield Choice(tp, pp, dp, False)
            if experts and tp * dp > 1:
                yield Choice(tp, pp, dp, True)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _has_experts(question: MemoryQuestion) -> bool:
    from quantplan.dispatch.families import model_structure

    return any(module.kind == "experts" for module in model_structure(question.checkpoint).modules)


def _tried(question: MemoryQuestion, choice: Choice) -> Choice:
    changes = {"tp": choice.tp, "pp": choice.pp}
    if question.table["engine"] != REPLICAS_APART:
        changes |= {"dp": choice.dp, "expert_parallel": choice.expert_parallel}
    found = attempt(question, changes)
    budget = found.budget
    if budget is None:
        return choice._replace(problem=found.problem)
    tokens = budget.kv_tokens * choice.dp if budget.fits else 0
    return choice._replace(
        weight_bytes=budget.weights.bytes, kv_tokens=tokens, modes=found.question.modes(),
        problem=found.problem or (None if budget.fits else "does not fit"))
