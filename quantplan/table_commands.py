"""What each `quantplan tables` command calls and prints; returns the exit code."""

from __future__ import annotations

import os

from quantplan import dispatch
from quantplan.options import ENGINES, engine_named
from quantplan.output import say, say_json, wrapped
from quantplan.tables.errors import UsageError
from quantplan.tables.versions import known_version

CODE = os.path.dirname(os.path.abspath(dispatch.__file__))
"""The Python files whose citations are checked besides the tables'."""


def run_lint(against: str | None = None, engine: str | None = None) -> int:
    """Print every violation of a schema or law and, with the engine's files, every citation that
    they do not have; return 0 when there is none, else 1."""
    from quantplan.tables.lint import lint

    violations = lint()
    if against is not None:
        violations += _wrong_citations(against, engine)
    for violation in violations:
        say(violation)
    say(f"{len(violations)} violations")
    return 1 if violations else 0


def _wrong_citations(against: str, engine: str | None) -> list[str]:
    from quantplan.tables.engine_check import wrong_citations
    from quantplan.tables.engine_source import engine_in, open_source

    name, version = engine_named(engine or engine_in(against, ENGINES), "--engine")
    source = open_source(name, against)
    if version is None and source.version is None:
        raise UsageError(f"{against}: its version is not known", wanted=f"--engine {name}@VERSION")
    return wrong_citations(name, known_version(name, version or source.version), source, CODE)


def run_bump(engine: str, old: str, new: str, wheels: tuple[str, str], format_: str) -> int:
    """Print what became of everything that version `old` cites; return 0 when all of it is
    unchanged, else 1."""
    from quantplan.reports.bump_text import bump_data, bump_text
    from quantplan.tables.engine_check import bumps
    from quantplan.tables.engine_source import open_source

    name, _ = engine_named(engine)
    old, new = (_version_of(name, text) for text in (old, new))
    before, after = (open_source(name, where) for where in wheels)
    for source, version in ((before, old), (after, new)):
        if source.version not in (None, version):
            raise UsageError(f"{source.where} is {name} {source.version}", wanted=version)
    found = bumps(name, known_version(name, old), before, after, CODE)
    if format_ == "json":
        say_json(bump_data(name, old, new, found))
    else:
        say(wrapped(bump_text(name, old, new, found)))
    return 1 if any(bump.state != "unchanged" for bump in found) else 0


def _version_of(engine: str, text: str) -> str:
    """Return the version of 0.32.0 or vllm@0.32.0; raise UsageError for another engine's."""
    name, version = engine_named(text, bare=engine)
    if name != engine or version is None:
        raise UsageError(text, wanted=f"a version of {engine}")
    return version


def run_compile() -> None:
    """Write every table's compiled form."""
    from quantplan.tables.compiling import write_compiled

    for name in write_compiled():
        say(f"compiled {name}")


def run_tables_diff(old: str, new: str, format_: str) -> None:
    """Print what differs between the tables of two versions of an engine."""
    from quantplan.reports.table_diff_text import table_diff_data, table_diff_text
    from quantplan.tables.table_diff import table_differences

    engine, before, after = two_versions(old, new)
    found = table_differences(engine, before, after)
    if format_ == "json":
        say_json(table_diff_data(engine, before, after, found))
    else:
        say(wrapped(table_diff_text(engine, before, after, found)))


def two_versions(old: str, new: str) -> tuple[str, str, str]:
    """Return the engine of both and the versions, which must have a table."""
    engine, before = engine_named(old, bare="vllm")
    other, after = engine_named(new, bare=engine)
    if other != engine:
        raise UsageError(f"{old} and {new} are two engines", wanted="two versions of one engine")
    return engine, known_version(engine, before), known_version(engine, after)


def run_platforms(engine: str, format_: str) -> None:
    """Print the methods of an engine version on every platform other than CUDA."""
    from quantplan.dispatch.platforms import method_grid
    from quantplan.reports.platform_text import grid_text
    from quantplan.reports.platform_view import grid_view
    from quantplan.tables.engine_loading import load_engine

    table = load_engine(*engine_named(engine, bare="vllm"))
    found = method_grid(table)
    if format_ == "json":
        say_json(grid_view(table, found))
    else:
        say(grid_text(table, found))
