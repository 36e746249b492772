"""`explain` for platforms other than CUDA: methods and what else the engine's source says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from quantplan.api import OWN_NAMES, asked_deployment, open_model
from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.platforms import PlatformTrace, place_of, resolve_on
from quantplan.dispatch.time_limit import limited
from quantplan.dispatch.trace import Finding
from quantplan.options import ENGINES, checked, engine_named
from quantplan.output import say, say_json, wrapped
from quantplan.stand_in import open_table, stand_in_notes
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple


class PlatformExplanation(NamedTuple):
    """What an engine version's source says of a model on a platform, with the question."""

    checkpoint: Checkpoint
    deployment: Deployment
    trace: PlatformTrace

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON-ready data (reports/schema/platform.v1.json)."""
        from quantplan.reports.platform_view import platform_view

        return platform_view(self.checkpoint, self.deployment, self.trace)


def explain_platform(
    model: str | os.PathLike[str] | Mapping[str, Any],
    platform: str,
    *,
    engine: str = "vllm",
    engine_version: str | None = None,
    gpu: str | None = None,
    assume_nearest: bool = False,
    tensors: Mapping[str, Any] | None = None,
    side_files: Mapping[str, Any] | None = None,
    revision: str | None = None,
    as_format: str | None = None,
    **options: Any,
) -> PlatformExplanation:
    """Return what the source of `engine` says of `model` on `platform` (cpu, rocm, xpu, npu).

    `gpu` is an architecture that the source tells apart (gfx942); `options` are those of `explain`.
    Nothing was checked against such hardware. Raises NotKnownError for a platform that the engine
    does not have and for options whose meaning there is not in the tables, UsageError and
    CheckpointError as `explain` does.
    """
    unknown = [name for name in options if name not in {*Deployment._fields, *OWN_NAMES}]
    if unknown:
        raise TypeError(f"explain_platform() got an unexpected keyword argument {unknown[0]!r}")
    deployment = asked_deployment(checked(model=model, platform=platform, engine=engine, gpu=gpu,
                                          **options))
    table = open_table(engine, engine_version, assume_nearest)
    place = place_of(table, platform, gpu)
    checkpoint = open_model(model, tensors=tensors, side_files=side_files, revision=revision,
                            as_format=as_format)
    with limited():
        trace = resolve_on(checkpoint, table, place, deployment)
    notes = stand_in_notes(table, engine_version)
    if notes:
        trace = trace._replace(asked=engine_version, findings=tuple(
            Finding("flags", note.severity, note.id, note.message, note.hint) for note in notes))
    return PlatformExplanation(checkpoint, deployment, trace)


def run_platform(
    engines: tuple[str, ...], options: Mapping[str, Any], asked: Mapping[str, Any]
) -> int:
    """Print one answer per engine (without `engines`: those that have the platform); return 1 when
    one of them refuses, else 0. `asked` are the keyword arguments that the options are."""
    model, platform = options["model"], options["platform"]
    for name, instead in CUDA_ONLY.items():
        if options[name] is not None:
            raise UsageError(f"--{name.replace('_', '-')} with --platform {platform}",
                             wanted=instead)
    asked = {name: value for name, value in asked.items() if name not in CUDA_ONLY}
    found = [explain_platform(model, platform, engine=name, engine_version=version, **asked)
             for name, version in _engines(engines, platform)]
    if options["format_"] == "json":
        views = [answer.to_dict() for answer in found]
        say_json(views[0] if len(views) == 1 else views)
    else:
        from quantplan.reports.platform_text import platform_text

        for answer in found:
            say(wrapped(platform_text(*answer)))
    return 1 if any(answer.trace.error for answer in found) else 0


CUDA_ONLY = {"capability": "--gpu, where the source tells GPUs of the platform apart",
             "why_not": "the lists that its answer has"}
"""Options that mean nothing on other platforms, and what does."""


def _engines(asked: tuple[str, ...], platform: str) -> list[tuple[str, str | None]]:
    if asked:
        return [engine_named(text, "--engine") for text in asked]
    return [(name, None) for name in ENGINES if platform in load_engine(name)["platforms"]]
