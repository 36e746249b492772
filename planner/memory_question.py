"""A question about memory that can be asked again with some of its options changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, MemoryFlags
from quantplan.tables.errors import QuantplanError
from quantplan.tables.record import NamedTuple

if TYPE_CHECKING:
    from quantplan.planner.budget import Budget, EngineRefusal
    from quantplan.planner.sglang_budget import SglangBudget

AS_FORMAT = "as_format"
"""The change that is no flag: the same model in another format."""


class MemoryQuestion(NamedTuple):
    """What `quantplan budget` is asked: the model, one engine's table, the GPU and the flags;
    `version` is that of the memory rules where it is not the table's."""

    checkpoint: Checkpoint
    table: Mapping[str, Any]
    deployment: Deployment
    gpu: Gpu | None
    flags: MemoryFlags
    gpu_mem: str | int | None = None
    version: str | None = None

    def changed(self, changes: Mapping[str, Any]) -> MemoryQuestion:
        """Return the question with other values of fields of Deployment or MemoryFlags, or of
        `as_format`. Raises UsageError for a format that is not known."""
        given = dict(changes)
        checkpoint = self.checkpoint
        if AS_FORMAT in given:
            from quantplan.dispatch.formats import as_format

            checkpoint = as_format(checkpoint, given.pop(AS_FORMAT))
        flags = {name: value for name, value in given.items() if name in MemoryFlags._fields}
        others = {name: value for name, value in given.items() if name not in flags}
        return self._replace(checkpoint=checkpoint, flags=self.flags._replace(**flags),
                             deployment=self.deployment._replace(**others))

    def budget(self, *, compare: bool = False) -> Budget | SglangBudget:
        """Return the answer, with `compare` that of other formats beside it; raises what
        deployed_budget and sglang_budget raise."""
        asked = (self.checkpoint, self.table, self.deployment, self.gpu, self.flags)
        if self.table["engine"] == "sglang":
            from quantplan.planner.sglang_deployed import sglang_budget

            return sglang_budget(*asked, gpu_mem=self.gpu_mem)
        from quantplan.planner.deployed import deployed_budget

        return deployed_budget(*asked, gpu_mem=self.gpu_mem, version=self.version,
                               compare=compare)

    def modes(self) -> str | None:
        """Return mode and implementation of the linear layers and experts in words, None where no
        GPU is named or the engine builds nothing."""
        if self.gpu is None:
            return None
        from quantplan.dispatch.answers import answer
        from quantplan.dispatch.summary import experts_parts, linear_parts

        trace = answer(self.checkpoint, self.table, self.gpu, self.deployment).trace
        if trace is None or trace.error is not None:
            return None
        parts = dict.fromkeys(found[0].words for found in (linear_parts(trace),
                                                           experts_parts(trace)) if found)
        return ", experts ".join(parts) or None


class Attempt(NamedTuple):
    """A changed question and its answer; `problem` is why there is none, or why the engine does
    not start."""

    question: MemoryQuestion
    budget: Budget | SglangBudget | None
    problem: str | None

    @property
    def starts(self) -> bool:
        """Return whether the engine starts with room for KV cache."""
        return self.budget is not None and self.budget.fits and self.problem is None

    @property
    def starts_shorter(self) -> bool:
        """Return whether the engine starts, be it with shorter requests than the model's own."""
        found = self.budget
        return self.starts or (found is not None and found.fits and found.refusal is not None
                               and found.refusal.is_too_long)


def attempt(question: MemoryQuestion, changes: Mapping[str, Any]) -> Attempt:
    """Return the answer with `changes`, or what keeps the engine from it."""
    asked = question
    try:
        asked = question.changed(changes)
        found = asked.budget()
    except QuantplanError as error:
        return Attempt(asked, None, str(error))
    return Attempt(asked, found, _problem(found.refusal) if found.refusal else None)


def _problem(refusal: EngineRefusal) -> str:
    """Return a refusal in a line, of too long requests only what starts."""
    return str(refusal.hint) if refusal.is_too_long else refusal.line()
