"""The budget asked backwards: the smallest share of the GPU that serves some users at once."""

from __future__ import annotations

from collections.abc import Callable

from quantplan.planner.memory_question import Attempt, MemoryQuestion, attempt
from quantplan.tables.errors import NotKnownError, UsageError
from quantplan.tables.record import NamedTuple

SHARES = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}
"""Engine -> the flag that says how much of the GPU it takes."""
LENGTHS = {"vllm": "max_model_len", "sglang": "context_length"}
"""Engine -> the flag that limits a request."""
STEPS = 1000
"""Shares are tried in thousandths."""


class Users(NamedTuple):
    """What serves `users` requests of `context_tokens` at once.

    `share` is the smallest value of `flag`, None where the whole GPU is too small; `most_users` is
    how many requests fit at the engine's own or given share.
    """

    users: int
    context_tokens: int
    flag: str
    share: float | None
    most_users: float
    problem: str | None


def users(question: MemoryQuestion, count: int, context_tokens: int) -> Users:
    """Return the smallest share of the GPU with which `count` requests of `context_tokens` tokens
    run at once. Raises UsageError for no user or no token, and what the budget raises."""
    if count < 1 or context_tokens < 1:
        raise UsageError("--users and --context", wanted="at least one user and one token",
                         found=f"{count} and {context_tokens}")
    flag = SHARES[question.table["engine"]]
    length = LENGTHS[question.table["engine"]]
    asked = question.changed({length: context_tokens, "kv_cache_memory_bytes": None})
    now = attempt(asked, {})
    if now.budget is None:
        raise NotKnownError(f"how many users fit: {now.problem}")

    def enough(step: int) -> bool:
        found = attempt(asked, {flag: step / STEPS})
        return found.starts and _concurrency(found, context_tokens) >= count

    step = smallest(enough, 1, STEPS)
    return Users(count, context_tokens, f"--{flag.replace('_', '-')}",
                 None if step is None else step / STEPS, _concurrency(now, context_tokens),
                 now.problem)


def _concurrency(found: Attempt, context_tokens: int) -> float:
    budget = found.budget
    if budget is None or not budget.fits:
        return 0.0
    return budget.requests_of(context_tokens)


def smallest(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest number from `low` to `high` at which a rising predicate holds."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
