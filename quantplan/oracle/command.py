"""`quantplan verify`: what it asks, and whom; the text is made in reports/."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

from quantplan.api import explain, open_model
from quantplan.commands import asked_of
from quantplan.dispatch.gpu import capability_gpu
from quantplan.options import engine_named
from quantplan.oracle.cases import Case, checkpoint_case, option_names, read_cases
from quantplan.oracle.engine_process import CannotAskError, EngineProcess, Where
from quantplan.oracle.grid import grid
from quantplan.oracle.run import Verdict, verify
from quantplan.oracle.summary import exit_code, summary
from quantplan.output import say, say_json, wrapped
from quantplan.stand_in import open_table
from quantplan.tables.errors import NotKnownError, UsageError

STEP = 50
"""Cases between two lines of progress."""


class Asked(NamedTuple):
    """What is to be verified: a model, the cases of a file, or `grid` generated ones."""

    model: str | None = None
    cases: str | None = None
    grid: int | None = None
    seed: int = 1
    only: str | None = None
    version: str | None = None
    capabilities: tuple[int, ...] = ()
    revision: str | None = None
    as_format: str | None = None
    env: Mapping[str, str] = {}
    libs: Mapping[str, Any] = {}
    flags: Mapping[str, Any] = {}


def run_verify(options: Mapping[str, Any]) -> int:
    """Print what a verification found; return the exit code."""
    from quantplan.reports.verify_text import verify_text

    engine, version = engine_named(options["engine"], "--engine")
    if engine != "vllm":
        raise NotKnownError(f"how to verify {engine}", wanted="vllm")
    flags = asked_of(options)
    asked = Asked(
        options["model"], options["cases"], options["grid"], options["seed"], options["only"],
        version, tuple(_capability(text) for text in options["capabilities"]),
        options["revision"], options["as_format"], flags.pop("env"), flags.pop("libs"),
        _changed(flags))
    if asked.model is None and (asked.env or asked.libs or asked.flags):
        raise UsageError("flags without a MODEL", wanted="none",
                         hint="Generated cases have flags of their own.")
    where = Where(options["python"] or sys.executable, tuple(options["paths"]))
    found = verification(asked, where, jobs=options["jobs"], limit_s=options["limit_s"])
    if options["format_"] == "json":
        say_json(found)
    else:
        say(wrapped(verify_text(found)))
    return exit_code(found)


def _capability(text: str) -> int:
    return capability_gpu(text).capability


def _changed(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's flags that are not at the default of `explain`."""
    parameters = signature(explain).parameters
    return {name: flags[name] for name in option_names() if name in flags
            and flags[name] not in (None, (), "auto", parameters[name].default)}


def verification(asked: Asked, where: Where, *, jobs: int = 1, limit_s: float = 60.0
                 ) -> dict[str, Any]:
    """Return what verifying against the engine at `where` found (summary.py). Raises NotKnownError
    when there is no engine to ask, UsageError for what is no question."""
    if sum(given is not None for given in (asked.model, asked.cases, asked.grid)) != 1:
        raise UsageError("what to verify", wanted="one of MODEL, --cases and --grid")
    version = _engine_version(where)
    if asked.version not in (None, version):
        raise UsageError(f"--engine vllm@{asked.version}", wanted="the version that is installed",
                         found=version)
    table = open_table("vllm", version, assume_nearest=True)
    cases = [case for case in _cases(asked, table) if asked.only is None or asked.only in case.id]
    emulated = {case.capability is not None for case in cases}
    if len(emulated) != 1:
        raise UsageError("no case is left" if not cases else
                         "some cases name a capability and some do not",
                         wanted="one machine for all: emulated ones, or this one")
    where = where._replace(emulate=emulated.pop())
    found = verify(cases, where, table, jobs=jobs, limit_s=limit_s)
    return summary(_told(found, len(cases)), table, version, where.python)


def _engine_version(where: Where) -> str:
    process = EngineProcess(where)
    try:
        return process.start(only_version=True)
    except CannotAskError as error:
        raise NotKnownError(str(error), hint="--python names the interpreter of an environment "
                            "that has the engine, --engine-path a folder that holds it.") from None
    finally:
        process.close()


def _cases(asked: Asked, table: Mapping[str, Any]) -> Iterable[Case]:
    if asked.grid is not None:
        return grid(asked.grid, asked.seed, table, asked.capabilities)
    if asked.cases is not None:
        return read_cases(asked.cases)
    return _model_cases(asked)


def _model_cases(asked: Asked) -> Iterator[Case]:
    assert asked.model is not None
    checkpoint = open_model(asked.model, revision=asked.revision, as_format=asked.as_format)
    capabilities: Sequence[int | None] = asked.capabilities or (None,)
    for capability in capabilities:
        yield checkpoint_case(checkpoint, capability, options=asked.flags, env=asked.env,
                              libs=asked.libs)


def _told(verdicts: Iterator[Verdict], count: int) -> Iterator[Verdict]:
    """Yield the verdicts, telling a person at the terminal how far it is."""
    shown = sys.stderr.isatty()
    for number, verdict in enumerate(verdicts, 1):
        if shown and number % STEP == 0:
            print(f"\r{number} of {count} cases", end="", file=sys.stderr, flush=True)
        yield verdict
    if shown and count >= STEP:
        print(file=sys.stderr)
