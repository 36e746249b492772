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
from quantplan.oracle.cases import Case, checkpoint_case, option_names, read_cases
from quantplan.oracle.engine_process import CannotAskError, EngineProcess, Where
from quantplan.oracle.grid import grid as generated
from quantplan.oracle.run import Verdict, verdicts
from quantplan.oracle.summary import summary
from quantplan.stand_in import open_table
from quantplan.tables.errors import NotKnownError, UsageError

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
    """Return what vLLM's own selection answers for `model`, for `grid` generated cases or for the
    cases of a file, against ours.

    `python` is the interpreter of the environment that has the engine (default: this one),
    `engine_paths` go on its path. Without `capabilities` this machine's own GPU answers; the grid
    has its own. `options` are those of `explain` that are flags of the engine. Raises NotKnownError
    when there is no engine to ask, UsageError for what is no question.
    """
    where = Where(python or sys.executable, tuple(engine_paths))
    version = _engine_version(where)
    if engine_version not in (None, version):
        raise UsageError(f"vllm {engine_version}", wanted="the version that is installed",
                         found=version)
    table = open_table("vllm", version, assume_nearest=True)
    asked = [capability_gpu(text).capability for text in capabilities]
    own = {"env": dict(env or {}), "libs": dict(libs or {}), "options": _changed(options)}
    if sum(given is not None for given in (model, cases, grid)) != 1:
        raise UsageError("what to verify", wanted="one of a model, a file of cases and a grid")
    if model is None and any(own.values()):
        raise UsageError("flags without a model", wanted="none",
                         hint="Generated cases have flags of their own.")
    found: Iterable[Case]
    if model is not None:
        checkpoint = open_model(model, revision=revision, as_format=as_format)
        here: Sequence[int | None] = asked or (None,)
        found = [checkpoint_case(checkpoint, capability, **own) for capability in here]
    elif cases is not None:
        found = read_cases(cases)
    else:
        found = generated(grid or 0, seed, table, asked)
    chosen = [case for case in found if only is None or only in case.id]
    where = where._replace(emulate=_emulated(chosen))
    answers = verdicts(chosen, where, table, jobs=jobs, limit_s=limit_s)
    return Verification(tuple(_told(answers, len(chosen))), version, table, where.python)


def _engine_version(where: Where) -> str:
    process = EngineProcess(where)
    try:
        return process.start(only_version=True)
    except CannotAskError as error:
        raise NotKnownError(str(error), hint="--python names the interpreter of an environment "
                            "that has the engine, --engine-path a folder that holds it.") from None
    finally:
        process.close()


def _changed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's flags that are not at the default of `explain`; raise UsageError for
    options that are none."""
    known = option_names()
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UsageError(f"option {unknown[0]!r}", wanted="one of " + ", ".join(known))
    parameters = signature(explain).parameters
    return {name: value for name, value in options.items()
            if value not in (None, (), "auto", parameters[name].default)}


def _emulated(cases: Sequence[Case]) -> bool:
    """Return whether the cases' machines are emulated: all of them, or none."""
    found = {case.capability is not None for case in cases}
    if len(found) != 1:
        raise UsageError("some cases name a capability and some do not" if found else
                         "no case is left",
                         wanted="cases of emulated machines, or cases of this one")
    if found == {False} and any(case.libs for case in cases):
        raise UsageError("libraries of this machine", wanted="none: the engine finds them itself",
                         hint="With a capability a machine with these libraries is emulated.")
    return found.pop()


def _told(answers: Iterator[Verdict], count: int) -> Iterator[Verdict]:
    """Yield the verdicts, telling a person at the terminal how far it is."""
    shown = sys.stderr.isatty() and count >= STEP
    for number, verdict in enumerate(answers, 1):
        if shown and number % STEP == 0:
            print(f"\r{number} of {count} cases", end="", file=sys.stderr, flush=True)
        yield verdict
    if shown:
        print(file=sys.stderr)
