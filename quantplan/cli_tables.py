"""`quantplan tables`: the tables behind the answers, checked, compared and compiled."""

from __future__ import annotations

import sys

import click

format_option = click.option("--format", "format_", type=click.Choice(["text", "json"]),
                             default="text")


@click.group()
def tables() -> None:
    """The tables behind the answers."""


@tables.command("lint")
@click.option("--against", metavar="WHEEL", type=click.Path(exists=True),
              help="A wheel of the engine, or a folder that holds its package: every file:symbol "
              "that the table of its version cites has to be there.")
@click.option("--engine", metavar="ENGINE[@VERSION]",
              help="What --against is, where it does not say so itself.")
def tables_lint(against: str | None, engine: str | None) -> None:
    """Check every table against its schema and every law. Ends with 1 for any violation."""
    from quantplan.table_commands import run_lint

    sys.exit(run_lint(against, engine))


@tables.command("bump")
@click.argument("engine")
@click.argument("old")
@click.argument("new")
@click.option("--old", "old_wheel", metavar="WHEEL", required=True, type=click.Path(exists=True),
              help="The engine's files of the version OLD, which has a table.")
@click.option("--new", "new_wheel", metavar="WHEEL", required=True, type=click.Path(exists=True),
              help="The engine's files of the version NEW.")
@format_option
def tables_bump(engine: str, old: str, new: str, **options: str) -> None:
    """Every cited place whose code changed, moved or went from version OLD of ENGINE to NEW: what
    to read for a table of NEW. Ends with 1 when there is any."""
    from quantplan.table_commands import run_bump

    wheels = (options["old_wheel"], options["new_wheel"])
    sys.exit(run_bump(engine, old, new, wheels, options["format_"]))


@tables.command("compile")
def tables_compile() -> None:
    """Write the compiled form of every table (after editing one)."""
    from quantplan.table_commands import run_compile

    run_compile()


@tables.command("diff")
@click.argument("old", metavar="vllm@OLD")
@click.argument("new", metavar="vllm@NEW")
@format_option
def tables_diff(old: str, new: str, format_: str) -> None:
    """Every row that differs between two versions of an engine, and why. Ends with 0, whatever
    differs."""
    from quantplan.table_commands import run_tables_diff

    run_tables_diff(old, new, format_)


@tables.command("platforms")
@click.argument("engine", metavar="ENGINE[@VERSION]", default="vllm")
@format_option
def tables_platforms(engine: str, format_: str) -> None:
    """Which methods ENGINE accepts, refuses or does not register on CPU, ROCm, XPU and NPU, as its
    source says."""
    from quantplan.table_commands import run_platforms

    run_platforms(engine, format_)
