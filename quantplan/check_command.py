"""`quantplan budget --check`: what it calls and prints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from quantplan.output import say, say_json, wrapped


def run_budget_check(
    engines: tuple[str, ...], options: Mapping[str, Any], given: Collection[str]
) -> int:
    """Print the budget next to what the log of --check says; return 0 when they agree, 1 when they
    do not, 4 when that cannot be told. `given` are the options of the command line: they win over
    the log's."""
    from quantplan.budget_command import memory_asked
    from quantplan.commands import asked_of
    from quantplan.memory_check import check_budget
    from quantplan.options import engine_named
    from quantplan.reports.budget_check_text import budget_check_text

    asked = {**memory_asked(options), **asked_of(options)}
    asked = {name: value for name, value in asked.items() if name in given}
    if engines:
        asked["engine"], asked["engine_version"] = engine_named(engines[0], "--engine")
    check = check_budget(options["check"], options["model"], **asked)
    if options["format_"] == "json":
        say_json(check.to_dict())
    else:
        say(wrapped(budget_check_text(check)))
    return check.exit_code
