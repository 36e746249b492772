"""`quantplan verify` on the command line: its options and what it says of itself."""

from __future__ import annotations

import sys
from typing import Any

import click

from quantplan.cli_options import deployment_options, selection_options, sglang_options
from quantplan.completion import format_names, model_names

EPILOG = (
    "Exit codes: 0 every answer that could be compared is the engine's; 1 disagreements; 2 usage; "
    "3 bad checkpoint; 4 could not tell: no engine, or nothing that could be compared."
)


@click.command(short_help="The engine's own selection against the tables.", epilog=EPILOG)
@click.option("--grid", type=click.IntRange(1), metavar="N",
              help="N generated cases in place of MODEL: families, methods, capabilities, flags.")
@click.option("--seed", type=int, default=1, show_default=True,
              help="Of --grid: the same seed gives the same cases.")
@click.option("--cases", metavar="FILE", type=click.Path(),
              help="The cases of a JSON-lines file in place of MODEL (`case` of --format json).")
@click.option("--only", metavar="TEXT", help="Only cases whose id holds TEXT.")
@click.option("--capability", "capabilities", multiple=True, metavar="8.9",
              help="Emulate a GPU of this compute capability; repeatable. Default: this machine's "
              "own GPU; --grid: all of the grid's.")
@click.option("--as", "as_format", metavar="FORMAT", shell_complete=format_names,
              help="MODEL as a hypothetical checkpoint.")
@click.option("--revision", metavar="REV", help="Hub revision.")
@deployment_options
@selection_options
@sglang_options
@click.option("--engine", default="vllm", metavar="vllm|sglang", show_default=True,
              help="The engine; its version is the one that is installed.")
@click.option("--python", metavar="PATH", help="Interpreter of the environment that has the "
              "engine. Default: this one.")
@click.option("--engine-path", "engine_paths", multiple=True, metavar="DIR", type=click.Path(),
              help="Folder that holds the engine's package, put on its path; repeatable.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True,
              help="Engine processes at once, about 1 GiB each.")
@click.option("--limit", "limit_s", type=click.FloatRange(0.1), default=60.0, show_default=True,
              metavar="SECONDS", help="Time for one answer of the engine.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text")
@click.argument("model", required=False, shell_complete=model_names)
def verify(**options: Any) -> None:
    """Run the engine's own selection for MODEL, or for --grid N generated cases, and print every
    difference from our answer with the reasons of both sides.

    The engine must be importable: in this environment, or by --python and --engine-path. On a
    machine with an NVIDIA GPU and without --capability that GPU and the installed libraries answer;
    with --capability an NVIDIA machine is emulated, on any machine. Weights are never loaded.
    """
    from quantplan.oracle.command import run_verify

    sys.exit(run_verify(options))
