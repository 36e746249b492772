"""Cases through the engine and through us: one verdict for each."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from quantplan.api import explain
from quantplan.dispatch.environment import library_facts
from quantplan.dispatch.gpu import capability_gpu
from quantplan.oracle.cases import Case
from quantplan.oracle.compare import Difference, differences
from quantplan.oracle.engine_process import EngineProcess, Where
from quantplan.tables.errors import NotKnownError, QuantplanError
from quantplan.tables.record import NamedTuple

AGREE, REFUSED, EXPLAINED, DISAGREE = "agree", "refused", "explained", "disagree"
GAP, UNTOLD = "gap", "untold"
STATUSES = (AGREE, REFUSED, EXPLAINED, DISAGREE, GAP, UNTOLD)
"""What a case comes to: the same answer; both refuse, we because it is no question at all, so that
words are not compared; another answer, and a finding of ours says the engine's; another answer; we
say that we do not know; the engine did not tell."""


class Verdict(NamedTuple):
    """What one case came to; `reason` is that of a gap, of differences that are explained, or of
    an engine that did not tell."""

    case: Case
    status: str
    differences: tuple[Difference, ...] = ()
    reason: str | None = None


def verdicts(cases: Iterable[Case], where: Where, table: Mapping[str, Any], *, jobs: int = 1,
             limit_s: float = 60.0) -> Iterator[Verdict]:
    """Yield a verdict for each case as the answers come; cases of one machine follow each other.

    `jobs` workers run at once; each holds an engine of its own.
    """
    groups = _by_machine(cases, table)
    todo: queue.SimpleQueue[list[tuple[Case, Any]]] = queue.SimpleQueue()
    for group in groups:
        todo.put(group)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with ExitStack() as stack:
        for _ in range(min(jobs, len(groups))):
            process = EngineProcess(where, limit_s)
            stack.callback(process.close)
            threading.Thread(target=_work, args=(process, todo, answers), daemon=True).start()
        for _ in range(sum(len(group) for group in groups)):
            case, answer = answers.get()
            yield judge(case, answer, table)


def _by_machine(cases: Iterable[Case], table: Mapping[str, Any]) -> list[list[tuple[Case, Any]]]:
    groups: dict[str, list[tuple[Case, Any]]] = {}
    for case in cases:
        machine = {"capability": case.capability, "env": dict(case.env),
                   "libs": _libs(case, table), "gpu": case.capability and capability_gpu(
                       str(case.capability)).name}
        groups.setdefault(json.dumps(machine, sort_keys=True), []).append((case, machine))
    return list(groups.values())


def _libs(case: Case, table: Mapping[str, Any]) -> dict[str, bool]:
    """Return every library that the table knows, present or not, as we take it to be."""
    facts = library_facts(table["libraries"], case.deployment())
    return {name.removeprefix("lib."): bool(there) for name, there in facts.items()}


def _work(process: EngineProcess, todo: queue.SimpleQueue[list[tuple[Case, Any]]],
          answers: queue.SimpleQueue[Any]) -> None:
    """Ask one worker until no group is left; an answer is put for every case, whatever happens."""
    while True:
        try:
            group = todo.get_nowait()
        except queue.Empty:
            return
        for case, machine in group:
            try:
                answer = process.ask(machine, case.question(process.engine))
            except Exception as error:
                answer = {"outcome": "untold", "reason": f"{type(error).__name__}: {error}"}
            answers.put((case, answer))


def judge(case: Case, answer: Mapping[str, Any], table: Mapping[str, Any]) -> Verdict:
    """Return what one case comes to, given the engine's answer."""
    if answer["outcome"] == "untold":
        return Verdict(case, UNTOLD, reason=answer["reason"])
    try:
        ours = _explained(case, answer["machine"], table)
    except NotKnownError as error:
        return Verdict(case, GAP, reason=str(error))
    except QuantplanError as error:
        if answer["outcome"] == "error":
            return Verdict(case, REFUSED, reason=str(error))
        return Verdict(case, DISAGREE, (_no_answer(error, answer),))
    except Exception as error:  # a fault of ours is what a verification is there to find
        return Verdict(case, DISAGREE, (_no_answer(error, answer),))
    return _compared(case, tuple(differences(ours, answer)))


def _compared(case: Case, found: tuple[Difference, ...]) -> Verdict:
    if found and all(difference.explained for difference in found):
        return Verdict(case, EXPLAINED, found, found[0].explained)
    return Verdict(case, DISAGREE if found else AGREE, found)


def _explained(case: Case, machine: Mapping[str, Any], table: Mapping[str, Any]
               ) -> dict[str, Any]:
    asked = case.asked()
    if case.capability is None:
        asked["libs"] = machine["libs"]
    return explain(case.config, engine=table["engine"], engine_version=table["version"],
                   capability=case.capability or machine["capability"], **asked).to_dict()


def _no_answer(error: Exception, answer: Mapping[str, Any]) -> Difference:
    return Difference("", "outcome", f"{type(error).__name__}: {error}", answer["outcome"])
