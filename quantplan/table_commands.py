"""What each `quantplan tables` command calls and prints; returns the exit code."""

from __future__ import annotations

from quantplan.options import engine_named
from quantplan.output import say, say_json, wrapped
from quantplan.tables.errors import UsageError
from quantplan.tables.versions import known_version


def run_lint() -> int:
    """Print every violation of a schema or law; return 0 when there is none, else 1."""
    from quantplan.tables.lint import lint

    violations = lint()
    for violation in violations:
        say(violation)
    say(f"{len(violations)} violations")
    return 1 if violations else 0


def run_compile() -> None:
    """Write every table's compiled form."""
    from quantplan.tables.load import write_compiled

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
    engine, before = engine_named(old)
    other, after = engine_named(new)
    if other != engine:
        raise UsageError(f"{old} and {new} are two engines", wanted="two versions of one engine")
    return engine, known_version(engine, before), known_version(engine, after)
