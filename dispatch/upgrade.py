"""What another engine version does with the same question, and which rows of its table decide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from quantplan.dispatch.trace import PARTIAL_TABLE, Layer, Trace
from quantplan.tables.errors import QuantplanError
from quantplan.tables.hybrid import deciding, hybrid, of_units, unit
from quantplan.tables.record import NamedTuple
from quantplan.tables.table_diff import Difference

Told = dict[tuple[str, str], dict[str, Any]]
"""(subject, name) -> what a trace says of it; the name of a layer is its path."""

OF_TABLES = ("assumed-version", PARTIAL_TABLE)
"""Findings that tell what a table of ours is, and nothing of the engine."""
UNTOLD = ("path", "module", "layer_index", "selection", "why", "asked", "tuned")


class Change(NamedTuple):
    """One thing that two versions tell differently: subject is start, method, kv_cache, layer or
    finding; `names` are those of which the same is true, such as layers' paths.

    `because` are the differences between the tables that decide it, a smallest set of them; it is
    empty where no rows do.
    """

    subject: str
    names: tuple[str, ...]
    fields: Mapping[str, tuple[Any, Any]]
    because: tuple[Difference, ...] = ()


def changes(old: Trace, new: Trace, looked_for: Collection[str] | None = None) -> list[Change]:
    """Return what differs between two traces; names with the same differences are one change.

    `looked_for` are the ids of the findings that both versions' tables look for, None for all.
    """
    before, behind = (_looked_for(trace, looked_for) for trace in (old, new))
    if old.error or new.error:
        before, behind = _before_layers(before), _before_layers(behind)
    found: dict[Any, Change] = {}
    for key in [*before, *(key for key in behind if key not in before)]:
        fields = _differing(before.get(key, {}), behind.get(key, {}))
        if fields:
            group = (key[0], repr(fields))
            known = found.get(group, Change(key[0], (), fields))
            found[group] = known._replace(names=(*known.names, key[1]))
    return list(found.values())


def _looked_for(trace: Trace, ids: Collection[str] | None) -> Told:
    kept = tuple(finding for finding in trace.findings if ids is None or finding.id in ids)
    return told(trace._replace(findings=kept))


def told(trace: Trace) -> Told:
    """Return everything of a trace that a user would notice."""
    error, method = trace.error, trace.method
    found: Told = {
        ("start", ""): {"outcome": trace.outcome, "dtype": trace.dtype,
                        **({"error": f"{error.type}: {error.message}", "layer": error.layer}
                           if error else {})},
        ("method", ""): {"name": method.resolved, "config_class": method.config_class,
                         "min_capability": method.min_capability},
        ("kv_cache", ""): {"resolved": trace.kv_cache.get("resolved"),
                           "method": trace.kv_cache.get("method")},
    }
    found |= {("layer", layer.path): _layer(layer) for layer in trace.layers}
    found |= {("finding", finding.message): {"severity": finding.severity, "id": finding.id}
              for finding in trace.findings if finding.id not in OF_TABLES}
    return found


def _layer(layer: Layer) -> dict[str, Any]:
    fields = {name: value for name, value in layer._asdict().items() if name not in UNTOLD}
    return {**fields, "kernel": layer.kernel}


def _before_layers(found: Told) -> Told:
    """A refusal ends a trace: it says nothing of what would have come behind it."""
    method = found["method", ""]["name"] is not None
    kept = ("start", "method") if method else ("start",)
    return {key: value for key, value in found.items() if key[0] in kept}


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [*old, *(name for name in new if name not in old)]
    return {name: (old.get(name), new.get(name)) for name in names
            if old.get(name) != new.get(name)}


def with_reasons(
    found: list[Change], tables: Sequence[Any], differences: list[Difference],
    ask: Callable[[Mapping[str, Any]], Trace],
) -> list[Change]:
    """Return the changes with what decides them: the fewest rows of the new table that, put into
    the old one, give the new version's answer. `ask` resolves the question with a table's content,
    as read from its file."""
    units = list(dict.fromkeys(unit(difference) for difference in differences))
    answers: dict[frozenset[str], Told | None] = {}

    def answer(taken: frozenset[str]) -> Told | None:
        if taken not in answers:
            answers[taken] = _answer(hybrid(tables[0], tables[1], taken), ask)
        return answers[taken]

    def decided(change: Change) -> Change:
        rows = deciding(units, lambda taken: _holds(change, answer(taken)))
        return change._replace(because=of_units(differences, rows))

    return [decided(change) for change in found]


def _answer(content: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], Trace]) -> Told | None:
    """Return what a table between two versions answers; nothing where its rows do not fit."""
    try:
        return told(ask(content))
    except (QuantplanError, LookupError):
        return None


def _holds(change: Change, answer: Told | None) -> bool:
    if answer is None:
        return False
    for name in change.names:
        found = answer.get((change.subject, name), {})
        if any(found.get(field) != new for field, (_, new) in change.fields.items()):
            return False
    return True
