"""What an engine's start-up log says: version, arguments, and every figure, worker by worker.

Which lines are known is data (tables/logs/). This module only reads; others compare.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from quantplan.dispatch.facts import Note
from quantplan.reports.log_fields import log_fields
from quantplan.reports.log_source import LogEndError, LogLine, clean_line, log_lines
from quantplan.tables.log_rows import log_table
from quantplan.tables.record import NamedTuple

ENGINES = ("vllm", "sglang")
VLLM_WORKER = re.compile(r"\((?P<name>[A-Za-z][\w.-]{0,60}) pid=\d+(?:, ip=[\w.:-]+)?\)")
SGLANG_WORKER = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: [A-Z_]{2,12}\d+)+)\]")
WORKER_WITHIN = 200
"""Characters of a line in which its worker is looked for: compose and Kubernetes write first."""
MOST_FIGURES = 20_000
ALONE = "main"
"""Name of the worker whose lines name none."""
FIELDS = ("args", "config")


class Figure(NamedTuple):
    """A value that a log printed; its unit is the end of `name`: gib, tokens, x, percent, share."""

    name: str
    value: float | int | str
    worker: str
    line: int


class StartupLog(NamedTuple):
    """One start of an engine: the last one that its log holds.

    `args` are the arguments that were given, `config` what the engine made of them, each as it
    prints them; `starts` is how many starts the log holds.
    """

    name: str
    engine: str | None
    version: str | None
    args: Mapping[str, Any]
    config: Mapping[str, Any]
    figures: tuple[Figure, ...]
    starts: int
    notes: tuple[Note, ...]

    def by_worker(self, name: str) -> dict[str, float | int | str]:
        """Return worker -> the last value of a figure."""
        return {figure.worker: figure.value for figure in self.figures if figure.name == name}

    def values(self, name: str) -> list[float]:
        """Return the figure's numbers, one per worker that printed it."""
        return [value for value in self.by_worker(name).values() if not isinstance(value, str)]

    def most(self, name: str) -> float | None:
        """Return the largest of the workers' figures, None where none printed it."""
        return max(self.values(name), default=None)

    def least(self, name: str) -> float | None:
        """Return the smallest of the workers' figures, None where none printed it."""
        return min(self.values(name), default=None)

    def text(self, name: str) -> str | None:
        """Return the first worker's text, None where none printed it."""
        return next((str(f.value) for f in self.figures if f.name == name), None)

    @property
    def model(self) -> str | None:
        """Return what the engine was asked to serve: a hub id or a path."""
        named = (self.args.get("model"), self.args.get("model_path"), self.args.get("model_tag"),
                 self.config.get("model"), self.text("model"))
        return next((name for name in named if isinstance(name, str) and name), None)


def read_log(where: str) -> StartupLog:
    """Return what the log at path `where` says ("-" is standard input, gzip is unpacked).

    Never fails on what the log holds: lines of other programs are passed over, a log that is cut,
    damaged or too long gives what stands before, and a note says so. Raises UsageError where there
    is no log to read.
    """
    notes: list[Note] = []
    return _read(where, _until_end(log_lines(where), notes), notes)


def parse_log(lines: Iterable[str], name: str = "log") -> StartupLog:
    """Return the same of lines in memory."""
    return _read(name, (LogLine(i, clean_line(line)) for i, line in enumerate(lines, 1)), [])


def _until_end(lines: Iterator[LogLine], notes: list[Note]) -> Iterator[LogLine]:
    try:
        for line in lines:
            if line.cut and not notes:
                notes.append(Note("log-line-cut", f"line {line.number} is too long and was cut"))
            yield line
    except LogEndError as end:
        notes.append(Note("log-incomplete", f"the log was not read to its end: {end}"))


class _Pattern(NamedTuple):
    holds: str
    pattern: re.Pattern[str]
    of: str
    starts: bool


@cache
def _patterns(engine: str) -> tuple[_Pattern, ...]:
    return tuple(_Pattern(row["holds"], re.compile(row["pattern"]), row["of"],
                          row.get("starts", False)) for row in log_table(engine)["lines"])


class _Run:
    """What is known of the start that is being read."""

    def __init__(self) -> None:
        self.args: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.figures: list[Figure] = []

    @property
    def weighed(self) -> bool:
        """Return whether a worker has loaded its weights."""
        return any(figure.name == "weights_gib" for figure in self.figures)


def _read(name: str, lines: Iterable[LogLine], notes: list[Note]) -> StartupLog:
    run, starts, engine = _Run(), 1, ""
    for line in lines:
        for owner, row in _candidates(line.text, engine):
            match = row.pattern.search(line.text)
            if match is None:
                continue
            engine = engine or owner
            if row.starts and run.weighed:
                run, starts = _Run(), starts + 1
            _note_match(run, row, match, line)
    if starts > 1:
        notes.append(Note("several-starts", f"the log holds {starts} starts; the last is read"))
    version = next((str(f.value) for f in run.figures if f.name == "version"), None)
    return StartupLog(name, engine or None, version, run.args, run.config, tuple(run.figures),
                      starts, tuple(notes))


def _candidates(text: str, engine: str) -> Iterator[tuple[str, _Pattern]]:
    """Yield the rows that may match a line: of the engine, once a line has told which."""
    for owner in (engine,) if engine else ENGINES:
        for row in _patterns(owner):
            if row.holds in text:
                yield owner, row


def _note_match(run: _Run, row: _Pattern, match: re.Match[str], line: LogLine) -> None:
    worker = _worker(line.text) if row.of == "worker" else row.of
    for name, text in match.groupdict().items():
        if text is None:
            continue
        if name in FIELDS:
            target = run.args if name == "args" else run.config
            for key, value in log_fields(text).items():
                target.setdefault(key, value)
        elif len(run.figures) < MOST_FIGURES and (value := _value(name, text)) is not None:
            run.figures.append(Figure(name, value, worker, line.number))


def _worker(text: str) -> str:
    start = text[:WORKER_WITHIN]
    if match := VLLM_WORKER.search(start):
        return match["name"]
    if match := SGLANG_WORKER.search(start):
        return match[1].strip()
    return ALONE


def _value(name: str, text: str) -> float | int | str | None:
    """Return the figure in the type of its unit, None for what only looks like one."""
    unit = name.rpartition("_")[2]
    try:
        if unit in ("gib", "x", "percent", "share"):
            return float(text)
        if unit in ("tokens", "count"):
            return int(text.replace(",", "")[:18])
    except ValueError:
        return None
    return text.strip()
