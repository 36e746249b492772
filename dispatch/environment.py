"""Libraries and environment variables as facts: lib.NAME and env.NAME."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.config_file import read_json
from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.predicates import Unreadable
from quantplan.dispatch.trace import EngineError, Refusal
from quantplan.tables.errors import NotKnownError, UsageError
from quantplan.tables.near_names import did_you_mean, near_names

Row = Mapping[str, Any]
INSTALLED = "installed"
"""State of a library whose package is there and which the engine still finds unusable."""


def library_facts(rows: Mapping[str, Row], deployment: Deployment) -> dict[str, bool | None]:
    """Return lib.NAME for every library: true, false, or None where it is not known.

    Raises UsageError for an unknown library, or a state that it does not have.
    """
    for name, state in deployment.libs.items():
        _check_state(rows, name, state)
    return {f"lib.{name}": _library(name, row, deployment) for name, row in rows.items()}


def _check_state(rows: Mapping[str, Row], name: str, state: Any) -> None:
    if name not in rows:
        raise UsageError(f"unknown library {name!r}", wanted="one of " + ", ".join(rows),
                         hint=did_you_mean(near_names(name, rows)))
    if state == INSTALLED and not any(row.get("package_of") == name for row in rows.values()):
        raise UsageError(f"--lib {name}={state}", wanted="on, off or unknown",
                         hint="An installed package is all that the engine asks for here.")


def _library(name: str, row: Row, deployment: Deployment) -> bool | None:
    whole = row.get("package_of")
    if whole is not None and whole in deployment.libs and name not in deployment.libs:
        state = deployment.libs[whole]
        return None if state is None else bool(state)
    if _is_word(deployment.env.get(row.get("turned_off_by", ""), "true")) is False:
        return False
    state = deployment.libs.get(name, row["default"])
    if state == INSTALLED:
        return _number(deployment.env.get(row["made_usable_by"], "0")) is True
    return state if state is None else bool(state)


def variable_facts(rows: Mapping[str, Row], deployment: Deployment) -> dict[str, Any]:
    """Return env.NAME for every variable that selection reads; Unreadable for a value at which the
    engine raises where it reads it (envs.py)."""
    return {f"env.{name}": _read(name, row, deployment.env.get(row.get("variable", name)))
            for name, row in rows.items()}


def check_known(rows: Mapping[str, Row], deployment: Deployment) -> None:
    """Raise NotKnownError for a variable whose value changes what no rule has."""
    for name, row in rows.items():
        value = deployment.env.get(name)
        if row.get("not_known") and _read(name, row, value) != row["default"]:
            raise NotKnownError(f"the environment variable {name}={value}",
                                hint=f"It changes {row['changes']}, which no rule has: unset it.")


def _read(name: str, row: Row, value: str | None) -> Any:
    if row["type"] == "names":
        return tuple((value or "").split(","))
    if value is None:
        return row["default"]
    choices = row.get("choices")
    folded = [choice.lower() for choice in choices or ()]
    known = value.lower() in folded if row.get("any_case") else value in (choices or (value,))
    if not known:
        return Unreadable("ValueError", f"Invalid value '{value}' for {name}. Valid options: "
                          f"{choices}.", "envs.py:env_with_choices")
    return _switch(row, value) if row["type"] == "switch" else READERS[row["type"]](value)


def _switch(row: Row, value: str) -> Any:
    """Return what SGLang reads: words in any case, and its default for any other
    (sglang 0.5.22 environ.py:EnvBool)."""
    return SWITCH.get(value.lower(), row.get("otherwise", row["default"]))


def _is_word(value: str) -> bool:
    return value.lower() in ("true", "1")


def _number(value: str) -> bool | Unreadable:
    try:
        return bool(int(value))
    except ValueError as error:
        return Unreadable("ValueError", str(error), "envs.py:environment_variables")


def _object(value: str) -> Any:
    """Return the object that the text, or the file that it names, holds."""
    if os.path.exists(value):
        return read_json(value)
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        return Unreadable("JSONDecodeError", str(error), "envs.py:maybe_convert_json_str_or_file")


def _json(value: str) -> Any:
    """Return what SGLang reads: JSON, or none where it is not (environ.py:EnvJSON)."""
    found = _object(value) if value else None
    return None if isinstance(found, Unreadable) else found


READERS: Mapping[str, Callable[[str], Any]] = {
    "flag": _number, "word": _is_word, "text": str, "object": _object,
    "json": _json,
}
"""Type of a variable's row -> how its text is read; a switch needs its row besides."""
SWITCH = {**dict.fromkeys(("true", "1", "yes", "y"), True),
          **dict.fromkeys(("false", "0", "no", "n"), False)}


def readable(name: str, facts: Mapping[str, Any], layer: str | None = None) -> Any:
    """Return a variable's value, or refuse as the engine does where it reads it for `layer`."""
    value = facts[f"env.{name}"]
    if isinstance(value, Unreadable):
        raise Refusal(EngineError("flags" if layer is None else "layer assignment", value.type,
                                  value.message, layer, value.source,
                                  f"Give {name} a value that the engine takes."))
    return value
