"""Where the building of a model ends whatever its layers are: what its class does not find in the
config, or does not take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.trace import Layer, refuse

Row = Mapping[str, Any]


def ends(table: Table, row: Row, architecture: str) -> tuple[Row, ...]:
    """Return what ends the start of a class: the rows of its own and those of activations that it
    does not take."""
    return (*row.get("ends", ()), *_refused_activations(table, architecture))


def _refused_activations(table: Table, architecture: str) -> Iterator[Row]:
    for rule in table["activations"]:
        unless = {"field": rule["field"], "values": rule["takes"]}
        for row in rule["classes"]:
            if architecture in row["architectures"]:
                yield from ({**rule, **row, "unless": unless, "at": path, "after": place == "after"}
                            for place in ("before", "after") for path in row.get(place, ()))


def check_ends(
    rows: Iterable[Row], checkpoint: Checkpoint, path: str, made: Mapping[str, Layer]
) -> None:
    """Refuse where a row ends the start before or, where it is among those `made`, after the module
    at `path`."""
    for row in rows:
        if row["at"] == path and row.get("after", False) == (path in made) and (
                _fits(row, checkpoint) and _made(row, made)):
            value = checkpoint.text_config.get(row.get("unless", {}).get("field"))
            raise refuse("layer assignment", row["type"],
                         row["message"].replace("{value}", str(value)), path, row["source"],
                         hint=row["hint"])


def _fits(row: Row, checkpoint: Checkpoint) -> bool:
    if "lacks" in row:
        return _absent(checkpoint.config, row["lacks"])
    if "nulled" in row:
        return checkpoint.text_config.get(row["nulled"], "absent") is None
    if "unless" not in row:
        return True
    given = checkpoint.text_config.get(row["unless"]["field"])
    return given is not None and str(given) not in row["unless"]["values"]


def _made(row: Row, made: Mapping[str, Layer]) -> bool:
    if "made" not in row:
        return True
    layer = made.get(row.get("of", row["at"]))
    return layer is not None and bool({layer.method, layer.scheme} & {*row["made"]})


def _absent(config: Mapping[str, Any], path: list[str]) -> bool:
    *places, name = path
    for place in places:
        inner = config.get(place)
        config = inner if isinstance(inner, Mapping) else {}
    return name not in config
