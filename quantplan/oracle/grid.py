"""Generated questions: drawn from tables/grid/, the same for the same seed and tables.

A case is a model (half of the time with drawn sizes), a quantization kind with up to three of its
fields drawn, options of the engine (mostly the first of each), and a machine. An engine is imported
anew for every machine, so each capability has one plain machine for half of its cases, and a few
with drawn libraries and variables for the others. One case in twenty has an odd value
in a random field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from quantplan.oracle.cases import Case
from quantplan.oracle.draw import Draw, leaves, put
from quantplan.oracle.grid_models import Paths, drawn_model
from quantplan.oracle.grid_rows import grid_rows

MOST_FIELDS = 3
ODD = 0.05
PLAIN = 0.7
"""How often an option has its first value."""

PLAIN_SHARE = 0.1
"""Linear layers that headers hold in 16 bits."""


def grid(count: int, seed: int, table: Mapping[str, Any], capabilities: Sequence[int] = ()
         ) -> Iterator[Case]:
    """Yield `count` cases for an engine's table; `capabilities` empty means all of the grid's."""
    rows = grid_rows(table["engine"])
    asked = list(capabilities or rows["capabilities"])
    machines = {capability: drawn_machines(seed, capability, rows, table) for capability in asked}
    for index in range(count):
        yield _case(f"{seed}/{index}", machines, rows, table)


def drawn_machines(seed: int, capability: int, rows: Mapping[str, Any], table: Mapping[str, Any]
                   ) -> list[dict[str, Any]]:
    """Return the machines of a capability: the plain one, then those with one to three drawn
    libraries and variables, of those that the engine's table knows."""
    choices = [("libs", choice) for choice in rows["libraries"]
               if choice["id"] in table["libraries"]]
    choices += [("env", choice) for choice in rows["variables"]
                if choice["id"] in table["environment"]]
    kernels = sorted(table.get("kernels", ())) or [""]
    machines: list[dict[str, Any]] = [{"env": {}, "libs": {}}]
    for number in range(rows["drawn_machines"]):
        draw = Draw(f"{seed}/machine/{capability}/{number}", {"kernel": lambda d: d.one(kernels)})
        machine: dict[str, Any] = {"env": {}, "libs": {}}
        for place, choice in [draw.one(choices), *draw.some(choices, 2)]:
            machine[place][choice["id"]] = draw.filled(draw.one(choice["values"]))
        machines.append(machine)
    return machines


def _case(name: str, machines: Mapping[int, Sequence[Mapping[str, Any]]], rows: Mapping[str, Any],
          table: Mapping[str, Any]) -> Case:
    draw = Draw(name)
    capability = draw.one(list(machines))
    plain, *others = machines[capability]
    machine = plain if draw.chance(0.5) or not others else draw.one(others)
    kind = draw.weighted(rows["kinds"])
    config = drawn_model(draw, table["engine"])
    paths = Paths(config)
    draw.names = {**paths.names(), **_table_names(table)}
    options, side_files, quantization = _quantized(draw, kind, rows["odd_values"])
    if quantization is not None:
        config["quantization_config"] = quantization
    tensors = None
    if "stored" in kind:
        tensors = dict(paths.headers(kind["stored"], PLAIN_SHARE, draw))
    options = {**_options(draw, rows["options"]), **options}
    return Case(name, kind["id"], config, capability, options, machine["env"], machine["libs"],
                side_files, tensors)


PLACEHOLDERS: Mapping[str, str] = {
    "method": "methods", "linear_backend": "linear_backends", "moe_backend": "moe_backends",
    "fp8_backend": "fp8_backends", "fp4_backend": "fp4_backends"}
"""Placeholder -> the engine table's rows from whose ids it is drawn."""


def _table_names(table: Mapping[str, Any]) -> dict[str, Callable[[Draw], str | None]]:
    def drawn(values: Sequence[str]) -> Callable[[Draw], str | None]:
        return lambda draw: draw.one(values)
    return {name: drawn(list(table[rows])) for name, rows in PLACEHOLDERS.items() if rows in table}


def _quantized(draw: Draw, kind: Mapping[str, Any], odd: Sequence[Any]
               ) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return the kind's options, side files and quantization config, some fields drawn."""
    places = {"options": deepcopy(dict(kind.get("options", {}))),
              "side_files": draw.filled(deepcopy(dict(kind.get("side_files", {}))))}
    config = draw.filled(deepcopy(kind.get("config")))
    for field in draw.some(kind["vary"], MOST_FIELDS):
        place, _, path = field["at"].partition(".")
        value = draw.filled(draw.one(field["values"]))
        if place in places:
            put(places[place], path, value)
        else:
            put(config, field["at"], value)
    if config and draw.chance(ODD):
        put(config, draw.one(leaves(config)), draw.one(odd))
    return places["options"], places["side_files"], config


def _options(draw: Draw, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return drawn options; those at the first value are left out."""
    drawn = {}
    for choice in choices:
        first, *others = choice["values"]
        value = first if draw.chance(PLAIN) else draw.filled(draw.one(others))
        if value != first:
            drawn[choice["id"]] = value
    return drawn
