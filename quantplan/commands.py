"""What each command calls and prints; returns the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from quantplan.options import ENGINES, engine_named, library_states, pairs
from quantplan.output import line_width, say, say_json, terminal_width, wrapped
from quantplan.tables.errors import UsageError
from quantplan.tables.versions import engine_versions, known_version

if TYPE_CHECKING:
    from quantplan.engines import EngineAnswers


def run_explain(engines: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Print what each engine would do, side by side; return 0 when all start, 1 when one does not,
    4 when one that was named has no answer."""
    from quantplan.dispatch.summary import starts
    from quantplan.engines import explain_engines

    if options["why_not"] and options["format_"] == "json":
        raise UsageError("--why-not goes with --format text only",
                         hint="The JSON has every candidate of every layer.")
    if options["platform"] != "cuda":
        from quantplan.platforms import run_platform

        return run_platform(engines, options, asked_of(options))
    found = explain_engines(options["model"], engines=engines or ENGINES, **asked_of(options))
    if options["format_"] == "json":
        views = found.to_dicts()
        say_json(views[0] if len(views) == 1 else views)
    else:
        _print_texts(found, options)
    if any(each.trace and starts(each.trace) == "no" for each in found.answers):
        return 1
    return 4 if engines and any(each.gap for each in found.answers) else 0


def run_matrix(engines: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Print the matrix; return 0 when a cell starts, 1 when none does, 4 when none is known."""
    from quantplan.gpu_matrix import matrix
    from quantplan.reports.matrix_text import matrix_text
    from quantplan.reports.matrix_view import matrix_view

    found = matrix(options["model"], engines=engines or ENGINES, gpus=options["gpus"],
                   capabilities=options["capabilities"], **asked_of(options))
    if options["format_"] == "json":
        say_json(matrix_view(found))
    else:
        say(matrix_text(found, terminal_width()))
    states = {cell.starts for cell in found.cells}
    return 0 if states & {"yes", "conditional"} else 1 if "no" in states else 4


def run_diff(options: Mapping[str, Any]) -> int:
    """Print what an upgrade changes; return 0 when the new version starts, else 1."""
    from quantplan.dispatch.summary import starts
    from quantplan.reports.question import Shown
    from quantplan.reports.upgrade_text import upgrade_text
    from quantplan.upgrade import diff

    engine, old, new = _two_versions(options["from_"], options["to"])
    found = diff(options["model"], engine=engine, from_version=old, to_version=new,
                 **asked_of(options))
    if options["format_"] == "json":
        say_json(found.to_dict())
    else:
        shown = [Shown(e.checkpoint, e.gpu, e.deployment, e.trace) for e in (found.old, found.new)]
        say(wrapped(upgrade_text(shown[0], shown[1], found.changes)))
    return 0 if starts(found.new.trace) != "no" else 1


def _two_versions(from_: str, to: str | None) -> tuple[str, str | None, str | None]:
    """Return the engine of --from and --to, and the version of each; raise UsageError where they
    are not two versions of one engine."""
    engine, old = engine_named(from_, "--from", bare="vllm")
    tables = " or ".join(f"{engine}@{name}" for name in engine_versions(engine))
    if to is None:
        raise UsageError("--to is missing", wanted=f"the version to compare with: {tables}")
    other, new = engine_named(to, "--to", bare=engine)
    if other != engine:
        raise UsageError(f"--from {engine} and --to {other} are two engines",
                         wanted="two versions of one engine")
    meant = [version or known_version(engine, None) for version in (old, new)]
    if meant[0] == meant[1]:
        raise UsageError(f"--from and --to are both {engine}@{meant[0]}",
                         wanted=f"two of {tables}")
    return engine, old, new


def _print_texts(found: EngineAnswers, options: Mapping[str, Any]) -> None:
    from quantplan.reports.explain_text import explain_text

    kernels = _kernels_named(found, options["why_not"]) if options["why_not"] else ()
    asked = (found.checkpoint, found.gpu, found.deployment)
    say(wrapped(explain_text(asked, found.answers, verbose=options["verbose"],
                             why_not=kernels, width=line_width())))


def _kernels_named(found: EngineAnswers, text: str) -> list[tuple[str, str]]:
    """Return (engine, kernel) of the engines that have the kernel. Raises UsageError where none
    has."""
    from quantplan.dispatch.candidates import kernel_named
    from quantplan.tables.engine_loading import load_engine

    kernels, refused = [], None
    for each in found.answers:
        try:
            kernels.append((each.engine, kernel_named(load_engine(each.engine, each.version),
                                                      text)))
        except UsageError as error:
            refused = refused or error
    if refused is not None and not kernels:
        raise refused
    return kernels


def asked_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `explain` that a command's options are."""
    from quantplan.api import explain

    names = set(signature(explain).parameters) - {"model", "engine"}
    asked = {name: value for name, value in options.items() if name in names}
    return {**asked, "env": pairs(options["env"], "--env", "KEY=VALUE"),
            "libs": library_states(options["libs"]),
            "attention_config": json_object(options["attention_config"], "--attention-config"),
            "quantization_config": json_object(options["quantization_config"],
                                           "--quantization-config"),
            **_kernel_config(options)}


KERNEL_FIELDS = ("linear_backend", "moe_backend", "linear_backend_per_quant")
"""Fields of the engine's --kernel-config that change selection."""


def _kernel_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --kernel-config asks for; the flags of their own win over it
    (vllm engine/arg_utils.py:EngineArgs.create_engine_config)."""
    given = json_object(options["kernel_config"], "--kernel-config") or {}
    unknown = [name for name in given if name not in KERNEL_FIELDS]
    if unknown:
        raise UsageError(f"--kernel-config: {unknown[0]}", wanted=", ".join(KERNEL_FIELDS),
                         hint="Its other fields do not change which kernels are chosen.")
    flags = {name: options[name] for name in KERNEL_FIELDS if options.get(name, "auto") != "auto"}
    return {**given, **flags}


def json_object(text: str | None, option: str) -> Mapping[str, Any] | None:
    """Return the JSON object of an option; raise UsageError for other text."""
    import json

    try:
        found = None if text is None else json.loads(text)
    except ValueError:
        raise UsageError(f"{option} {text}", wanted="a JSON object") from None
    if found is not None and not isinstance(found, dict):
        raise UsageError(f"{option} {text}", wanted="a JSON object")
    return found


def run_gpus(words: tuple[str, ...], format_: str) -> None:
    """Print the catalogue, or the rows whose names hold every word."""
    from quantplan.dispatch.gpu import all_gpus
    from quantplan.reports.catalogue import gpu_table

    rows = [row for row in all_gpus() if _holds(row, words)]
    if format_ == "json":
        say_json(rows)
    else:
        say(gpu_table(rows) if rows else
            "no GPU has these words in its name; `quantplan gpus` lists them all")


def _holds(row: Mapping[str, Any], words: tuple[str, ...]) -> bool:
    text = " ".join((row["id"], row["name"], *row.get("aliases", ()))).lower()
    return all(word.lower() in text for word in words)


def run_models(format_: str) -> None:
    """Print the bundled models."""
    from quantplan.dispatch.bundled import bundled_models
    from quantplan.reports.catalogue import model_data, model_table

    rows = model_data(bundled_models())
    if format_ == "json":
        say_json(rows)
    else:
        say(model_table(rows))


def run_probe(format_: str) -> int:
    """Print this machine's GPUs and what stood in the way; return 1 when none can be used."""
    from quantplan.dispatch.gpu_probe import probe_gpus
    from quantplan.reports.catalogue import probe_data, probe_text

    found = probe_gpus()
    if format_ == "json":
        say_json(probe_data(found))
    else:
        say(probe_text(found))
    return 0 if found.gpus else 1
