"""`quantplan.explain_engines`: several engines' answers to one question."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from quantplan.api import asked_deployment, explain, open_gpu, open_model
from quantplan.dispatch.answers import Answer, answer
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.options import ENGINES, checked, engine_named
from quantplan.stand_in import assumed, open_table
from quantplan.tables.errors import QuantplanError
from quantplan.tables.record import NamedTuple


class EngineAnswers(NamedTuple):
    """What several engine versions would do with a model on a GPU, or why that is not known."""

    checkpoint: Checkpoint
    gpu: Gpu
    deployment: Deployment
    answers: tuple[Answer, ...]

    @property
    def difference(self) -> str | None:
        """Return where and why two engines differ, in one sentence; None where one has no
        answer, or where there are not two."""
        from quantplan.reports.difference import difference

        traces = [answer.trace for answer in self.answers if answer.trace is not None]
        return difference(*traces) if len(traces) == len(self.answers) == 2 else None

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return each answer as JSON-ready data (reports/schema/explain.v1.json), that of an engine
        whose answer is not known as the error (reports/schema/error.v1.json)."""
        from quantplan.reports.explain_view import explain_view

        asked = (self.checkpoint, self.gpu, self.deployment)
        return [explain_view(*asked, found.trace) if found.trace else _gap(found)
                for found in self.answers]


def explain_engines(
    model: str | os.PathLike[str] | Mapping[str, Any],
    *,
    engines: Sequence[str] = ENGINES,
    **options: Any,
) -> EngineAnswers:
    """Return what each of `engines` ("vllm", "sglang@0.5.23") would do with `model`.

    `options` are those of `explain` but for engine and engine_version. What is not known of one
    engine is its answer's `gap`; where no engine has an answer, the first gap is raised. Raises
    what `explain` raises.
    """
    given, deployment = asked(model, options)
    named = [engine_named(text, "--engine") for text in engines]
    nearest = given["assume_nearest"]
    tables = [open_table(engine, version, nearest) for engine, version in named]
    checkpoint = asked_model(given)
    gpu = open_gpu(given["gpu"], given["capability"])
    found = tuple(_stamped(answer(checkpoint, table, gpu, deployment), version)
                  for table, (_, version) in zip(tables, named, strict=True))
    if all(each.gap is not None for each in found):
        raise _of_all([each.gap for each in found if each.gap is not None])
    return EngineAnswers(checkpoint, gpu, deployment, found)


def asked(
    model: str | os.PathLike[str] | Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], Deployment]:
    """Return every option of `explain`, checked, where some may be left out, and the engine's
    command line that they are."""
    bound = signature(explain).bind(model, **options)
    bound.apply_defaults()
    given = checked(**bound.arguments)
    return given, asked_deployment(given)


def asked_model(given: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint that the options name."""
    return open_model(given["model"], **{name: given[name] for name in READ})


READ = ("tensors", "side_files", "revision", "as_format")
"""Options that say which checkpoint is meant."""


def _of_all(gaps: Sequence[QuantplanError]) -> QuantplanError:
    """Return the gap to raise where no engine has an answer: the first of an engine that has the
    flag at all."""
    return next((gap for gap in gaps if not str(gap.wanted).startswith(OTHERS)), gaps[0])


OTHERS = "flags of "
"""How the wanted of a flag that an engine does not have begins."""


def _stamped(found: Answer, asked: str | None) -> Answer:
    return found if found.trace is None else found._replace(trace=assumed(found.trace, asked))


def _gap(found: Answer) -> dict[str, Any]:
    assert found.gap is not None
    return {**found.gap.to_dict(), "engine": {"name": found.engine, "version": found.version}}
