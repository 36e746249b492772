"""What `quantplan budget` calls and prints; returns the exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from quantplan.commands import asked_of, json_object
from quantplan.options import engine_named
from quantplan.output import say, say_json, wrapped
from quantplan.tables.errors import NotKnownError, UsageError

if TYPE_CHECKING:
    from quantplan.planner.budget import Budget
    from quantplan.planner.sglang_budget import SglangBudget

SECTIONS = ("levers", "formats", "choices", "users")


def run_budget(engines: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Print the memory budget of each engine; return 0 when the weights and a block of KV cache fit
    and nothing known keeps an engine from starting, 4 where one has no answer, else 1."""
    from quantplan.memory import budget

    if options["model"] is None:
        raise UsageError("MODEL is missing", wanted="a folder, a config.json, a hub id or a "
                         "bundled name", hint="Only with --check may the log name it.")
    named = [engine_named(text, "--engine") for text in engines or ("vllm",)]
    questions = [{"engine": engine, "engine_version": version, **memory_asked(options),
                  **asked_of(options)} for engine, version in named]
    found: list[Budget | SglangBudget] = []
    gaps: list[tuple[str, NotKnownError]] = []
    for asked in questions:
        try:
            found.append(budget(options["model"], **asked))
        except NotKnownError as error:
            gaps.append((asked["engine"], error))
    if not found:
        raise gaps[0][1]
    questions = [asked for asked in questions if asked["engine"] not in dict(gaps)]
    further = [dict(_answers(options, asked, each))
               for asked, each in zip(questions, found, strict=True)]
    if options["svg"]:
        _write_picture(options["svg"], found)
    if options["format_"] == "json":
        views = [{**each.to_dict(), **_data(more)}
                 for each, more in zip(found, further, strict=True)]
        views += [{**gap.to_dict(), "engine": {"name": engine}} for engine, gap in gaps]
        say_json(views[0] if len(views) == 1 else views)
    else:
        say("\n".join(_text(*pair) for pair in zip(found, further, strict=True)))
        for engine, gap in gaps:
            say(f"\n{engine}: {gap}")
    if gaps:
        return gaps[0][1].exit_code
    return 0 if all(each.fits and not each.refusal for each in found) else 1


def run_fit(engines: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Print which GPUs hold the model; return 0 when one does, else 1."""
    from quantplan.memory_answers import fits
    from quantplan.options import ENGINES
    from quantplan.reports.memory_answers_text import fits_data, fits_text

    if options["capabilities"]:
        raise UsageError("--fit with --capability", wanted="--gpu NAME, whose memory is known")
    found = fits(options["model"], engines=engines or ENGINES, gpus=options["gpus"],
                 **asked_of(options))
    if options["format_"] == "json":
        say_json(fits_data(found))
    else:
        say(fits_text(found))
    return 0 if any(fit.kv_tokens for fit in found) else 1


def memory_asked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that `budget` has besides those of `explain`."""
    from inspect import signature

    from quantplan.memory import budget

    own = set(signature(budget).parameters) - {"model", "options"}
    asked = {name: value for name, value in options.items() if name in own}
    return {**asked, **{name: json_object(options[name], f"--{name.replace('_', '-')}")
                        for name in ("speculative_config", "limit_mm_per_prompt")}}


def _answers(
    options: Mapping[str, Any], asked: Mapping[str, Any], found: Budget | SglangBudget
) -> Iterator[tuple[str, Any]]:
    """Yield the further answers that are asked for, by their name in the JSON."""
    if not any(options[name] for name in ("levers_asked", "formats_asked", "gpu_count",
                                          "user_count", "context_tokens")):
        return
    from quantplan import memory_answers as more

    model = options["model"]
    if options["levers_asked"]:
        yield "levers", more.levers(model, **asked)
    if options["formats_asked"]:
        yield "formats", more.formats(model, **asked)
    if options["gpu_count"]:
        yield "choices", more.choices(model, options["gpu_count"], **asked)
    if options["context_tokens"] and not options["user_count"]:
        raise UsageError("--context goes with --users", wanted="--users N --context TOKENS")
    if options["user_count"]:
        yield "users", more.users(model, options["user_count"],
                                  options["context_tokens"] or found.longest_request, **asked)


def _data(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [row._asdict() for row in found] if name != "users" else found._asdict()
            for name, found in answers.items()}


def _text(found: Budget | SglangBudget, answers: Mapping[str, Any]) -> str:
    texts = [wrapped(_budget_text(found)).removesuffix("\n")]
    if answers:
        from quantplan.reports import memory_answers_text as words

        texts += [getattr(words, f"{name}_text")(answers[name]) for name in SECTIONS
                  if name in answers]
    return "\n\n".join(texts) + "\n"


def _budget_text(found: Budget | SglangBudget) -> str:
    if found.engine == "sglang":
        from quantplan.reports.sglang_budget_text import sglang_budget_text

        return sglang_budget_text(found)  # type: ignore[arg-type]
    from quantplan.reports.budget_text import budget_text

    return budget_text(found)  # type: ignore[arg-type]


def _write_picture(path: str, found: list[Any]) -> None:
    """Write the picture; a file that was there stays whole where that fails."""
    from quantplan.output import write_whole
    from quantplan.planner.segments import bar_of
    from quantplan.reports.memory_svg import memory_svg

    bars = [bar_of(each)._replace(label=each.engine if len(found) > 1 else "") for each in found]
    write_whole(path, memory_svg(f"Memory of one GPU: {found[0].model}", bars))
