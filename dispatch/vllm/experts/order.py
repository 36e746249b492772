"""Which backends of a list the engine tries, in which order, and what changed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.candidates import promote
from quantplan.dispatch.predicates import applies, fill
from quantplan.dispatch.trace import Step
from quantplan.dispatch.vllm.experts.plan import NO_KEY
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]
Facts = Mapping[str, Any]


class BackendError(Exception):
    """What the engine raises before it asks any class: exception type and words."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Order(NamedTuple):
    """The backends to try; `pinned` when they were asked for, so that failing raises."""

    backends: tuple[Row, ...]
    steps: tuple[Step, ...]
    pinned: bool


def order(table: Row, row: Row, facts: Facts, given: Mapping[str, str], act: str) -> Order:
    """Return the order of the experts list `row`; raises BackendError for a --moe-backend that the
    list does not have. `given` are the environment variables that are set, `act` the activation
    key that the method asks with."""
    flag = facts["flag.moe_backend"]
    if flag != "auto" and "flags" in row and flag not in row.get("flags_ignored", ()):
        return _asked(row, flag, facts, act)
    steps: list[Step] = []
    names = _moved(row, _automatic(row), facts, steps)
    if row.get("humming_first") and facts["gpu.prefers_humming"]:
        names = promote(names, table["promotion"], steps)
    for switch in row.get("switches", ()):
        if any(name in given for name in switch["variables"]):
            on = all(facts[f"env.{name}"] for name in switch["variables"])
            names, step = _switched(row, switch, names, on)
            steps.append(step)
            if step.kind == "Pinned":
                return Order((_row(row, switch["pins"]),), tuple(steps), True)
        else:
            names = _unset(switch, names, facts, steps, row["source"])
    if row.get("by_activation"):
        names = _by_activation(row, names, act)
    return Order(tuple(_named(row, names)), tuple(steps), False)


def _switched(row: Row, switch: Row, names: list[str], on: bool) -> tuple[list[str], Step]:
    """Return the names after a switch whose variables are given, and what it did."""
    told = f"{' or '.join(switch['variables'])} is set"
    if on and "pins" in switch:
        return names, Step("Pinned", switch["pins"], told, row["source"])
    rest = [name for name in names if name not in switch["removes"]]
    if on:
        return [switch["first"], *rest], Step(
            "Reordered", f"{switch['first']} first", told, row["source"])
    return rest, Step("Filtered", f"without {', '.join(switch['removes'])}", told, row["source"])


def _unset(
    switch: Row, names: list[str], facts: Facts, steps: list[Step], source: str
) -> list[str]:
    """Return the names that stay where no variable of a switch is given."""
    for case in switch.get("unset", ()):
        if applies(case["when"], facts):
            steps.append(Step("Filtered", f"without {', '.join(case['removes'])}",
                              case["because"], source))
            names = [name for name in names if name not in case["removes"]]
    return names


def _automatic(row: Row) -> list[str]:
    return list(row["auto"]) if "auto" in row else [
        backend["id"] for backend in row["backends"] if backend.get("auto", True)]


def _moved(row: Row, names: list[str], facts: Facts, steps: list[Step]) -> list[str]:
    for move in row.get("order", ()):
        if not applies(move["when"], facts):
            continue
        name = move.get("first") or move.get("last") or move["move"]
        rest = [n for n in names if n != name]
        place = 0 if "first" in move else len(rest)
        if "move" in move:
            place = rest.index(move["after"]) + 1
        rest.insert(place, name)
        if rest != names:
            where = "first" if "first" in move else "last" if "last" in move else (
                f"behind {move['after']}")
            steps.append(Step("Reordered", f"{name} {where}", move["because"], row["source"]))
        names = rest
    return names


def _asked(row: Row, flag: str, facts: Facts, act: str) -> Order:
    names = row["flags"].get(flag)
    if names is None:
        raise BackendError("ValueError", fill(row["texts"]["unknown"], {
            "flag": flag, "known": str(list(row["flags"]))}))
    special = next((special["backends"] for special in row.get("flags_when", ())
                    if special["flag"] == flag and applies(special["when"], facts)), None)
    whole = act == NO_KEY and flag in row.get("flags_whole", ())
    if row.get("by_activation") and not special and not whole:
        names = _by_activation(row, names, act)
    names = special or names
    if not names:
        raise BackendError("ValueError", f"moe_backend={flag!r} does not support "
                      f"activation={facts['quant.act_text']}")
    step = Step("Pinned", ", ".join(names), f"--moe-backend {flag}", row["source"])
    return Order(tuple(_named(row, names)), (step,), True)


def _by_activation(row: Row, names: Sequence[str], act: str) -> list[str]:
    """Return the backends with the asked activations, then those with 16-bit ones
    (oracle/mxfp4.py:_filter_by_activation)."""
    keys = {backend["id"]: backend.get("act") for backend in row["backends"]}
    plain = [name for name in names if keys[name] in (NO_KEY, None)]
    if act == NO_KEY:
        return plain or list(names)
    matching = [name for name in names if keys[name] in (act, None)]
    return matching + [name for name in plain if name not in matching]


def _named(row: Row, names: Sequence[str]) -> list[Row]:
    """Return the rows of the backends, in order; a backend may stand in several rows."""
    return [backend for name in dict.fromkeys(names) for backend in row["backends"]
            if backend["id"] == name]


def _row(row: Row, name: str) -> Row:
    return next(backend for backend in row["backends"] if backend["id"] == name)
