"""What each flag buys: the budget asked again with one change at a time."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.planner.memory_question import MemoryQuestion, attempt
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple


class Lever(NamedTuple):
    """One change and what it gains.

    `gained_bytes` is what today's KV cache would have to grow by to hold as many tokens as there
    are with the change, in the whole deployment: comparable also where a token becomes smaller.
    """

    id: str
    flag: str
    costs: str
    kv_tokens: int
    gained_tokens: int
    gained_bytes: int


def levers(question: MemoryQuestion) -> tuple[Lever, ...]:
    """Return the changes that gain tokens over the question's own answer, the most first; those
    that the engine refuses for more than the length of a request, that change nothing or whose
    memory is not known are left out.

    Raises what the budget raises.
    """
    base = question.budget()
    tokens = base.kv_tokens if base.fits else 0
    found = sorted(_levers(question, tokens, base.bytes_per_token),
                   key=lambda lever: -lever.gained_bytes)
    return tuple(lever for lever in found if lever.gained_bytes > 0)


def _levers(question: MemoryQuestion, today: int, per_token: float) -> Iterator[Lever]:
    engine = question.table["engine"]
    for row in read_table("levers/levers")["levers"]:
        if row["engine"] != engine or not _narrows(question, row["changes"]):
            continue
        found = attempt(question, row["changes"])
        if found.starts_shorter and found.budget is not None:
            gained = found.budget.kv_tokens - today
            yield Lever(row["id"], row["flag"], row["costs"], found.budget.kv_tokens, gained,
                        round(gained * per_token))


def _narrows(question: MemoryQuestion, changes: dict[str, object]) -> bool:
    """Return whether a change of ranks asks for more of them than there are already."""
    tp = changes.get("tp")
    return not isinstance(tp, int) or tp > question.deployment.tp
