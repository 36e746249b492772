"""The budget asked again with other options: levers, choices, users, formats and fits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantplan.dispatch.time_limit import limited
from quantplan.memory import memory_question
from quantplan.options import ENGINES, engine_named
from quantplan.planner.memory_question import MemoryQuestion
from quantplan.stand_in import open_table

if TYPE_CHECKING:
    from quantplan.planner.choices import Choice
    from quantplan.planner.formats_compared import FormatRow
    from quantplan.planner.gpu_fit import Fit
    from quantplan.planner.levers import Lever
    from quantplan.planner.searches import Users


def levers(
    model: str | os.PathLike[str] | Mapping[str, Any], **options: Any
) -> tuple[Lever, ...]:
    """Return what each flag would gain of `model`'s KV cache, the most first; `options` are those
    of `budget`. Raises what `budget` raises."""
    from quantplan.planner.levers import levers as found

    with limited():
        return found(memory_question(model, **options))


def choices(
    model: str | os.PathLike[str] | Mapping[str, Any], gpus: int, **options: Any
) -> tuple[Choice, ...]:
    """Return every way to share `model` over `gpus` GPUs of the kind asked about, those with most
    KV tokens first. Raises what `budget` raises."""
    from quantplan.planner.choices import choices as found

    with limited():
        return found(memory_question(model, **options), gpus)


def users(
    model: str | os.PathLike[str] | Mapping[str, Any], count: int, context_tokens: int,
    **options: Any,
) -> Users:
    """Return the smallest share of the GPU with which `count` requests of `context_tokens` tokens
    run at once. Raises what `budget` raises."""
    from quantplan.planner.searches import users as found

    with limited():
        return found(memory_question(model, **options), count, context_tokens)


def formats(
    model: str | os.PathLike[str] | Mapping[str, Any], **options: Any
) -> tuple[FormatRow, ...]:
    """Return memory, mode and kernels of `model` in every usual format, with the KV cache dtype
    asked for and with FP8. Raises what `budget` raises."""
    from quantplan.planner.formats_compared import formats_compared

    with limited():
        return formats_compared(memory_question(model, **options))


def fits(
    model: str | os.PathLike[str] | Mapping[str, Any], *, engines: Sequence[str] = ENGINES,
    gpus: Sequence[str] = (), **options: Any,
) -> tuple[Fit, ...]:
    """Return the KV tokens of `model` under each engine on each GPU of `gpus` (none: every GPU of
    the catalogue whose memory is known), or why it does not start there. Raises what `budget`
    raises but for the GPU."""
    from quantplan.gpu_matrix import ALL, asked_gpus
    from quantplan.planner.gpu_fit import gpu_fits

    cards = asked_gpus(gpus or (ALL,), ())
    named = [engine_named(text, "--engine") for text in engines]
    with limited():
        first = memory_question(model, gpu_mem=1 << 40, engine=named[0][0],
                                engine_version=named[0][1], **options)
        questions = [first, *(_of_engine(first, *each, options) for each in named[1:])]
        return gpu_fits(questions, cards)


def _of_engine(
    first: MemoryQuestion, engine: str, version: str | None, options: Mapping[str, Any]
) -> MemoryQuestion:
    """Return the question to another engine, whose checkpoint is not read again."""
    table = open_table(engine, version, bool(options.get("assume_nearest")))
    return first._replace(table=table, version=version)
