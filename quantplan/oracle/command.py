"""What `quantplan verify` calls and prints; returns the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.commands import asked_of
from quantplan.options import engine_named
from quantplan.oracle.summary import exit_code
from quantplan.oracle.verification import verify
from quantplan.output import say, say_json, wrapped

OWN = ("grid", "seed", "cases", "only", "capabilities", "python", "engine_paths", "jobs", "limit_s")
"""Options that are this command's; the others are those of `explain`."""


def run_verify(options: Mapping[str, Any]) -> int:
    """Print what a verification found; return the exit code."""
    from quantplan.reports.verify_text import verify_text

    engine, version = engine_named(options["engine"], "--engine")
    own = {name: options[name] for name in OWN}
    found = verify(options["model"], engine=engine, engine_version=version, **own,
                   **asked_of(options)).to_dict()
    if options["format_"] == "json":
        say_json(found)
    else:
        say(wrapped(verify_text(found)))
    return exit_code(found)
