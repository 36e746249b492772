"""Confront the budget with the start-up log of an engine: predicted against printed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from quantplan.dispatch.facts import Note
from quantplan.options import KINDS
from quantplan.reports.budget_check import BudgetCheck, compare, not_predicted
from quantplan.reports.startup_log import StartupLog, read_log
from quantplan.tables.errors import NotKnownError, UsageError
from quantplan.tables.log_rows import log_table

SAME_MEMORY_GIB = 0.02


def check_budget(
    log: str | StartupLog, model: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    **options: Any,
) -> BudgetCheck:
    """Return how the budget compares with what the engine printed while it started.

    `log` is a path ("-" is standard input) or a log that was read. Engine, version, flags and
    memory are the log's where it says them; `options` are those of `budget` and win over them.
    `model` None is the model that the log names, where it is a folder or bundled. Raises
    UsageError where there is no log or no model to go by, NotKnownError where no line of the log
    is an engine's, and what `budget` raises for `model` itself.
    """
    from quantplan.memory import budget

    found = read_log(log) if isinstance(log, str) else log
    if found.engine is None:
        raise NotKnownError(f"--check {found.name}", wanted="a start-up log of vLLM or SGLang",
                            found="no line of either")
    asked, notes = logged_options(found)
    given = {name: value for name, value in options.items() if value is not None}
    notes += [Note("option-of-its-own", f"the log says {name} {asked[name]}, asked was {value}")
              for name, value in given.items() if name in asked and asked[name] != value]
    asked |= given
    served = model if model is not None else logged_model(found)
    name = str(found.model or (served if isinstance(served, str) else "the model"))
    asked |= _gpu(found, asked)
    asked.setdefault("engine", found.engine)
    asked.setdefault("engine_version", _release(found.version))
    if not {"gpu", "gpu_mem", "capability"} & set(asked):
        return not_predicted(found, name, "the log names neither the GPU nor its memory: pass "
                             "--gpu or --gpu-mem")
    try:
        predicted = budget(served, assume_nearest=True, **asked)
    except NotKnownError as error:
        return not_predicted(found, name, str(error))
    return compare(found, name, predicted, tuple(notes))


def _release(version: str | None) -> str | None:
    """Return a version without its build: 0.26.1rc1.dev608+g99a1 counts as 0.26.1."""
    if version is None:
        return None
    digits = "".join(c if c.isdigit() or c == "." else " " for c in version).split()
    return digits[0].strip(".") if digits else None


def logged_options(log: StartupLog) -> tuple[dict[str, Any], list[Note]]:
    """Return the options of `budget` that a log's arguments are, and a note for each that cannot
    be one."""
    assert log.engine is not None
    table = log_table(log.engine)
    found: dict[str, Any] = {}
    notes: list[Note] = []
    for printed, names in ((log.args, table["flags"]), (log.config, table["resolved"])):
        for key, option in names.items():
            value = _plain(printed.get(key))
            if option in found or value is None:
                continue
            if KINDS[option][1](value):
                found[option] = value
            else:
                notes.append(Note("flag-not-read", f"{key} {str(value)[:60]!r} of the log is no "
                                  f"value of {option}"))
    batch = log.most("batched_tokens")
    if batch and log.engine == "vllm":
        found.setdefault("max_num_batched_tokens", int(batch))
    return found, notes


def _plain(value: Any) -> Any:
    """Return a printed value as the option takes it: dtypes without torch's name."""
    return value.removeprefix("torch.") if isinstance(value, str) else value


def logged_model(log: StartupLog) -> str:
    """Return the model that a log names, as `budget` takes it without a network: a path, or a
    bundled model. Raises UsageError."""
    from quantplan.dispatch.bundled import bundled_checkpoint, bundled_models

    name = log.model
    if name and os.path.exists(name):
        return name
    for row in bundled_models():
        if name and name.lower() == str(row["hub"]).lower():
            return str(row["id"])
    short = (name or "").rstrip("/").split("/")[-1]
    if short and bundled_checkpoint(short) is not None:
        return short
    raise UsageError("MODEL is missing", wanted="the model of the log, before --check",
                     found=f"the log names {name}" if name else "the log names none",
                     hint="A model folder, a config.json or a hub id.")


def _gpu(log: StartupLog, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the GPU and the memory that a log prints, where they were not given."""
    memory = log.most("memory_gib")
    found: dict[str, Any] = {}
    if "gpu_mem" not in asked and memory:
        found["gpu_mem"] = f"{memory:.2f}GiB"
    if "gpu" not in asked and "capability" not in asked:
        name = next(_gpus(log, memory), None)
        found |= {"gpu": name} if name else {}
    return found


def _gpus(log: StartupLog, memory_gib: float | None) -> Iterator[str]:
    """Yield the GPU that a log names, or the ones of the catalogue with just its memory."""
    from quantplan.dispatch.gpu import all_gpus, find_gpu

    named = log.text("gpu")
    if named:
        with suppress(UsageError, NotKnownError):
            yield find_gpu(named).name
    if memory_gib is None:
        return
    near = [gpu for gpu in map(find_gpu, (row["id"] for row in all_gpus())) if gpu.memory_bytes
            and abs(gpu.memory_bytes / 2**30 - memory_gib) < SAME_MEMORY_GIB]
    if len({gpu.capability for gpu in near}) == 1:
        yield near[0].id or near[0].name
