"""`quantplan verify`: what it asks, and whom; the text is made in reports/."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from quantplan.oracle.cases import Case, checkpoint_case, read_cases
from quantplan.oracle.engine_process import EngineError, EngineProcess, Where
from quantplan.oracle.grid import grid
from quantplan.oracle.run import Verdict, verify
from quantplan.oracle.summary import summary
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
    capabilities: tuple[int, ...] = ()
    revision: str | None = None
    as_format: str | None = None
    options: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}
    libs: Mapping[str, Any] = {}


def verification(asked: Asked, where: Where, *, jobs: int = 1, limit_s: float = 60.0
                 ) -> dict[str, Any]:
    """Return what verifying against the engine at `where` found (summary.py). Raises NotKnownError
    when there is no engine to ask, UsageError for what is no question."""
    if sum(given is not None for given in (asked.model, asked.cases, asked.grid)) != 1:
        raise UsageError("what to verify", wanted="one of MODEL, --cases and --grid")
    version = _engine_version(where)
    table = open_table("vllm", version, assume_nearest=True)
    cases = [case for case in _cases(asked, table) if asked.only is None or asked.only in case.id]
    if where.emulate and any(case.capability is None for case in cases):
        raise UsageError("a case names no capability", wanted="--capability",
                         hint="Without one, this machine's own GPU answers, and it has none.")
    found = verify(cases, where, table, jobs=jobs, limit_s=limit_s)
    return summary(_told(found, len(cases)), table, version, where.python)


def _engine_version(where: Where) -> str:
    process = EngineProcess(where)
    try:
        return process.start()
    except EngineError as error:
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
    from quantplan.api import open_model

    assert asked.model is not None
    checkpoint = open_model(asked.model, revision=asked.revision, as_format=asked.as_format)
    capabilities: Sequence[int | None] = asked.capabilities or (None,)
    for capability in capabilities:
        yield checkpoint_case(checkpoint, capability, options=asked.options, env=asked.env,
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
