"""A verification: the engine and we are asked the same questions, and the answers are compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from quantplan.api import explain, open_model
from quantplan.dispatch.gpu import capability_gpu
from quantplan.dispatch.gpu_probe import probe_gpus
from quantplan.options import checked
from quantplan.oracle.cases import Case, checkpoint_case, read_cases
from quantplan.oracle.engine_process import CannotAskError, EngineProcess, Where
from quantplan.oracle.flags import option_names
from quantplan.oracle.grid import grid as generated
from quantplan.oracle.run import Verdict, verdicts
from quantplan.oracle.summary import summary
from quantplan.stand_in import open_table
from quantplan.tables.errors import NotKnownError, UsageError

EMULATED_ONLY = ("sglang",)
"""Engines whose worker runs layers without values, which a real GPU does not."""

STEP = 50
"""Cases between two lines of progress."""


@dataclass(frozen=True)
class Verification:
    """What every case came to, the engine's version, and the version of the table it was compared
    with (the nearest one's, where the engine's has none)."""

    verdicts: tuple[Verdict, ...]
    version: str
    table: Mapping[str, Any]
    python: str

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as JSON-ready data (reports/schema/verify.v1.json)."""
        return summary(self.verdicts, self.table, self.version, self.python)


def verify(
    model: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    grid: int | None = None,
    seed: int = 1,
    cases: str | None = None,
    only: str | None = None,
    capabilities: Sequence[str] = (),
    engine: str = "vllm",
    engine_version: str | None = None,
    python: str | None = None,
    engine_paths: Sequence[str] = (),
    jobs: int = 1,
    limit_s: float = 60.0,
    env: Mapping[str, str] | None = None,
    libs: Mapping[str, bool | str | None] | None = None,
    revision: str | None = None,
    as_format: str | None = None,
    **options: Any,
) -> Verification:
    """Return what the own selection of `engine` answers for `model`, for `grid` generated cases or
    for the cases of a file, against ours.

    `python` is the interpreter of the environment that has the engine (default: this one),
    `engine_paths` go on its path. Without `capabilities` this machine's own GPU answers; the grid
    has its own. `options` are those of `explain` that are flags of the engine. Raises UsageError
    for what is no question, before the engine is looked for, and NotKnownError when there is no
    engine to ask, or no GPU that could answer.
    """
    checked(engine=engine)
    where = Where(python or sys.executable, tuple(engine_paths), engine=engine)
    asked = [capability_gpu(text).capability for text in capabilities]
    own = {"env": dict(env or {}), "libs": dict(libs or {}), "options": _changed(options, engine)}
    _check_question((model, cases, grid), own, engine_paths)
    given: Sequence[Case] | None = None
    if model is not None:
        checkpoint = open_model(model, revision=revision, as_format=as_format)
        here: Sequence[int | None] = asked or (None,)
        given = _chosen((checkpoint_case(checkpoint, capability, **own) for capability in here),
                        only)
    elif cases is not None:
        given = _chosen(read_cases(cases), only)
    version = _engine_version(where, engine_version)
    table = open_table(engine, version, assume_nearest=True)
    if given is None:
        given = _chosen(generated(grid or 0, seed, table, asked), only)
    where = where._replace(emulate=given[0].capability is not None)
    if not where.emulate:
        _check_gpu(engine)
    answers = verdicts(given, where, table, jobs=jobs, limit_s=limit_s)
    return Verification(tuple(_told(answers, len(given))), version, table, where.python)


def _check_question(
    given: Sequence[object], own: Mapping[str, Any], engine_paths: Sequence[str]
) -> None:
    """Raise UsageError unless one thing is to be verified, with flags that it can have, and the
    engine's folders are there."""
    if sum(one is not None for one in given) != 1:
        raise UsageError("what to verify", wanted="one of MODEL, --cases FILE and --grid N")
    if given[0] is None and any(own.values()):
        raise UsageError("flags without a model", wanted="none",
                         hint="Generated cases have flags of their own.")
    missing = [path for path in engine_paths if not os.path.isdir(path)]
    if missing:
        raise UsageError(f"--engine-path {missing[0]}", wanted="a folder",
                         found="a file" if os.path.exists(missing[0]) else "nothing there")


def _engine_version(where: Where, wanted: str | None) -> str:
    """Return the version of the engine that is there, which is the one wanted, if any is."""
    process = EngineProcess(where)
    try:
        version = process.start(only_version=True)
    except CannotAskError as error:
        raise NotKnownError(str(error), hint="--python names the interpreter of an environment "
                            "that has the engine, --engine-path a folder that holds it.") from None
    finally:
        process.close()
    if wanted not in (None, version):
        raise UsageError(f"{where.engine} {wanted}", wanted="the version that is installed",
                         found=version)
    return version


def _check_gpu(engine: str) -> None:
    """Raise NotKnownError where this machine has no GPU that the engine could be asked on."""
    if engine in EMULATED_ONLY:
        raise NotKnownError(f"how to ask {engine} on this machine's own GPU",
                            wanted="--capability, such as 8.9",
                            hint="It emulates an NVIDIA machine and needs no GPU.")
    probe = probe_gpus()
    if not probe.gpus:
        raise NotKnownError(f"no GPU to ask the engine on: {probe.problems[0].message}",
                            wanted="--capability, such as 8.9",
                            hint="It emulates an NVIDIA machine and needs no GPU.")


def _changed(options: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """Return the engine's flags that are not at the default of `explain`; raise UsageError for
    options that are none."""
    parameters = signature(explain).parameters
    changed = {name: value for name, value in options.items() if name not in parameters
               or value not in (None, (), "auto", parameters[name].default)}
    known = option_names(engine)
    unknown = [name for name in changed if name not in known]
    if unknown:
        raise UsageError(f"option {unknown[0]!r}", wanted="one of " + ", ".join(known))
    return changed


def _chosen(cases: Iterable[Case], only: str | None) -> Sequence[Case]:
    """Return the cases whose id holds `only`; raise UsageError unless there are some and the
    machines of all of them, or of none, are emulated."""
    chosen = [case for case in cases if only is None or only in case.id]
    _check_machines(chosen)
    return chosen


def _check_machines(cases: Sequence[Case]) -> None:
    found = {case.capability is not None for case in cases}
    if len(found) != 1:
        raise UsageError("some cases name a capability and some do not" if found else
                         "there is no case to ask",
                         wanted="cases of emulated machines, or cases of this one")
    if found == {False} and any(case.libs for case in cases):
        raise UsageError("libraries of this machine", wanted="none: the engine finds them itself",
                         hint="With a capability a machine with these libraries is emulated.")


def _told(answers: Iterator[Verdict], count: int) -> Iterator[Verdict]:
    """Yield the verdicts, telling a person at the terminal how far it is."""
    shown = sys.stderr.isatty() and count >= STEP
    for number, verdict in enumerate(answers, 1):
        if shown and number % STEP == 0:
            print(f"\r{number} of {count} cases", end="", file=sys.stderr, flush=True)
        yield verdict
    if shown:
        print(file=sys.stderr)
