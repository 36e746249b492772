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
def tables_lint() -> None:
    """Check every table against its schema and every law."""
    from quantplan.table_commands import run_lint

    sys.exit(run_lint())


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
