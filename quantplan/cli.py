"""The command line: parse, call, render. No logic lives here; imports are made inside commands."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from contextlib import suppress
from itertools import pairwise
from typing import Any, NoReturn

import click

from quantplan import __version__
from quantplan.cli_options import (
    answer_options,
    assume_nearest,
    checkpoint_options,
    deployment_options,
    given_options,
    memory_options,
    model_options,
    optional_model_options,
    selection_options,
    sglang_memory_options,
    sglang_options,
)
from quantplan.cli_tables import tables
from quantplan.cli_verify import verify
from quantplan.completion import gpu_names, kernel_names
from quantplan.output import clean, discard_stdout, say, say_json
from quantplan.tables.errors import QuantplanError, UsageError

LONGEST_ERROR, LONGEST_BUG = 1000, 500
OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Tables and traces are many objects without cycles: looking for some costs a tenth of a start."""
EPILOG = (
    "Exit codes: 0 it starts and fits, perhaps on a condition that is named; 1 the engine would "
    "refuse, fail or not fit; 2 usage; 3 bad or unreadable checkpoint; 4 not known (no table, "
    "unknown layout); 5 our bug."
)


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="quantplan")
def quantplan() -> None:
    """Which quantized kernel will the engine pick on this GPU, in which mode, and does it fit?"""


@quantplan.command(short_help="Kernel, mode and gates per layer, and why.")
@model_options
@deployment_options
@click.option("--engine", "engines", multiple=True, metavar="ENGINE[@VERSION]",
              help="vllm or sglang; repeatable. Default: both, side by side.")
@assume_nearest
@selection_options
@sglang_options
@click.option("--platform", type=click.Choice(["cuda", "cpu", "rocm", "xpu", "npu"]),
              default="cuda", show_default=True, help="Others: the methods, and what else the "
              "engine's source says; not checked against hardware. --gpu gfx942 names a GPU.")
@click.option("--why-not", metavar="KERNEL", shell_complete=kernel_names,
              help="Every check of one kernel, layer by layer (text only).")
@click.option("--verbose", "-v", is_flag=True, help="The whole trace.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text")
def explain(engines: tuple[str, ...], **options: Any) -> None:
    """What runs: method, gates, kernel and mode per layer of MODEL, and why.

    MODEL is a folder, a config.json, a hub id or a bundled name (`quantplan models`). Sizes N x K
    are output and input features of a layer on one rank of --tp. That it starts is said of
    selection and model construction, not of memory (`quantplan budget`).
    """
    from quantplan.commands import run_explain

    sys.exit(run_explain(engines, options))


@quantplan.command(short_help="GPUs across, engines down: kernel, mode and start of each.")
@checkpoint_options
@deployment_options
@click.option("--engine", "engines", multiple=True, metavar="ENGINE[@VERSION]",
              help="vllm or sglang; repeatable. Default: both.")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", shell_complete=gpu_names,
              help="A GPU of the catalogue, or all; repeatable.")
@click.option("--capability", "capabilities", multiple=True, metavar="8.9",
              help="A compute capability; repeatable. Default: every one of the catalogue.")
@click.option("--fit", is_flag=True, help="KV tokens instead of kernels: which GPUs hold the "
              "model; default: every GPU of the catalogue.")
@assume_nearest
@selection_options
@sglang_options
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text")
def matrix(engines: tuple[str, ...], **options: Any) -> None:
    """Where MODEL starts and what it runs there: modes and kernels of its linear layers and
    experts, KV cache and attention, one column per GPU or compute capability.

    GPUs that are served alike share a column. Ends with 0 when an engine starts somewhere, with 1
    when none does.
    """
    if options["fit"]:
        from quantplan.budget_command import run_fit

        sys.exit(run_fit(engines, options))
    from quantplan.commands import run_matrix

    sys.exit(run_matrix(engines, options))


@quantplan.command(short_help="What another engine version would change, and why.")
@model_options
@deployment_options
@click.option("--from", "from_", metavar="[ENGINE@]VERSION", default="vllm",
              help="The version that is served now; default: the default one.")
@click.option("--to", metavar="[ENGINE@]VERSION", help="The version to compare with; required.")
@assume_nearest
@selection_options
@sglang_options
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text")
def diff(**options: Any) -> None:
    """What an upgrade changes for MODEL: start, method, KV cache, kernel and mode of every layer,
    and the rows of the engine's table that decide it.

    Ends with 0 when the version --to starts and 1 when it does not, whatever changes.
    """
    from quantplan.commands import run_diff

    sys.exit(run_diff(options))


@quantplan.command(short_help="Weights, KV bytes and KV tokens in memory.")
@optional_model_options
@deployment_options
@memory_options
@selection_options
@sglang_options
@sglang_memory_options
@click.option("--engine", "engines", multiple=True, metavar="ENGINE[@VERSION]",
              help="vllm or sglang; repeatable. Default: vllm.")
@assume_nearest
@answer_options
@click.option("--gpu-mem", metavar="24GiB", help="GPU memory: GiB, GB, MiB or plain bytes.")
@click.option("--check", metavar="LOG", help="A start-up log, - for standard input: what the "
              "engine printed next to what is predicted. Flags and a bundled MODEL are the log's.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text")
@click.pass_context
def budget(context: click.Context, /, engines: tuple[str, ...], **options: Any) -> None:
    """What fits: weights, KV bytes per token and KV tokens of MODEL in a GPU's memory.

    With --check ends with 0 when prediction and log agree, 1 when they do not, 4 when that cannot
    be told.
    """
    if options["check"] is not None:
        from quantplan.check_command import run_budget_check

        sys.exit(run_budget_check(engines, options, given_options(context)))
    from quantplan.budget_command import run_budget

    sys.exit(run_budget(engines, options))


@quantplan.command(short_help="The GPUs that are known.")
@click.argument("words", nargs=-1)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text")
def gpus(words: tuple[str, ...], format_: str) -> None:
    """The GPUs that are known, or those whose name holds every one of WORDS."""
    from quantplan.commands import run_gpus

    run_gpus(words, format_)


@quantplan.command(short_help="The bundled models.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text")
def models(format_: str) -> None:
    """The bundled models, which need no network."""
    from quantplan.commands import run_models

    run_models(format_)


@quantplan.command()
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text")
def probe(format_: str) -> None:
    """This machine's GPUs, as the engine would see them."""
    from quantplan.commands import run_probe

    sys.exit(run_probe(format_))


quantplan.add_command(tables)
quantplan.add_command(verify)


@quantplan.command(short_help="A shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print SHELL's completion script; put `eval "$(quantplan completion bash)"` in its rc."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    say(found(quantplan, {}, "quantplan", "_QUANTPLAN_COMPLETE").source())


def main() -> None:
    """Run the command line; every refusal is one line on stderr and a documented exit code."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        quantplan.main(prog_name="quantplan", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        click.echo("quantplan: interrupted", err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _end(UsageError(" ".join(error.format_message().split()), hint="See --help."))
    except QuantplanError as error:
        _end(error)
    except OSError as error:  # the library's own output: --help, --version
        if error.errno != errno.ENOSPC:
            _end(_bug(error))
        discard_stdout()
        _end(UsageError("the output cannot be written", found=error.strerror))
    except Exception as error:  # our bug: still one line, never a traceback
        _end(_bug(error))


def _end(error: QuantplanError) -> NoReturn:
    """Say the error in one line, and as JSON where that is asked for; exit with its code."""
    if _json_asked(sys.argv):
        with suppress(QuantplanError):  # what cannot be written is not said twice
            say_json(error.to_dict())
    text = str(error)
    text = text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}..."
    click.echo(f"error: {error.kind}: {clean(text)}", err=True)
    sys.exit(error.exit_code)


def _json_asked(arguments: list[str]) -> bool:
    """Return whether --format json is among the arguments, of which others may be wrong."""
    return "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def _bug(error: Exception) -> QuantplanError:
    """Return a bug of ours as an error that names its place."""
    import traceback

    if os.environ.get("QUANTPLAN_DEBUG"):
        traceback.print_exc()
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    return QuantplanError(f"{type(error).__name__} at {place}: {str(error)[:LONGEST_BUG]}",
                          hint="This is a bug of quantplan; QUANTPLAN_DEBUG=1 shows where.")
