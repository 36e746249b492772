"""Where two engines' answers to one question differ, and why, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quantplan.dispatch.joined import joined
from quantplan.dispatch.predicates import PASS
from quantplan.dispatch.summary import (
    implementation,
    in_body,
    kv_words,
    mode_of,
    part_words,
    served_by,
    starts,
    weights_of,
)
from quantplan.dispatch.trace import Layer, Trace
from quantplan.reports.layer_names import short_path
from quantplan.reports.naming import engine_words

LONGEST_REASON = 160
"""Characters of an engine's error that the sentence holds."""
SHOWN_NAMES = 3
"""Layers that the sentence names."""
PLAIN = "W16A16"


class Pair(NamedTuple):
    """One place of the model as two engines serve it: layers, modes and implementations."""

    layers: tuple[Layer, Layer]
    modes: tuple[str, str]
    served: tuple[str | None, str | None]

    @property
    def key(self) -> tuple[object, ...]:
        """Return what pairs that are told together share."""
        return self.modes, self.served


def difference(one: Trace, other: Trace) -> str:
    """Return the sentence: about a start that is refused, else modes, else kernels, else the KV
    cache; the layers with most weights first."""
    traces = (one, other)
    refused = [starts(trace) == "no" for trace in traces]
    if any(refused):
        return _start(traces, refused)
    groups = _groups(traces)
    for differs in (_modes_differ, _served_differ):
        heaviest = max((group for group in groups if differs(group[0])), default=None,
                       key=lambda group: sum(weights_of(pair.layers[0]) for pair in group))
        if heaviest is not None:
            return _sentence(heaviest, traces)
    same = "They do not differ in the modes and kernels of their layers"
    return f"{same}{_kv(traces)}." if groups else f"Neither quantizes a layer{_kv(traces)}."


def _start(traces: Sequence[Trace], refused: Sequence[bool]) -> str:
    if all(refused):
        told = "; ".join(f"{engine_words(trace)}: {_refusal(trace)}" for trace in traces)
        return f"Neither starts: {told}."
    good, bad = sorted(traces, key=lambda trace: starts(trace) == "no")
    return f"{engine_words(good)} starts and {engine_words(bad)} does not: {_refusal(bad)}."


def _refusal(trace: Trace) -> str:
    """Return the stage and the beginning of the engine's own words."""
    if trace.error is None:
        found = next(f for f in trace.findings if f.severity == "error")
        return f"{found.message} ({found.stage})"
    words = " ".join(trace.error.message.split())
    if len(words) > LONGEST_REASON:
        words = words.split(". ")[0]
    cut = words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON]}..."
    told = cut.removesuffix(".") or f"{trace.error.type} without text at {trace.error.layer}"
    return f"{told} ({trace.error.stage})"


def _groups(traces: Sequence[Trace]) -> list[list[Pair]]:
    """Return the places that an engine quantizes, those that both serve alike together."""
    found: dict[tuple[object, ...], list[Pair]] = {}
    for pair in _pairs(traces):
        if pair.modes != (PLAIN, PLAIN):
            found.setdefault(pair.key, []).append(pair)
    return list(found.values())


def _pairs(traces: Sequence[Trace]) -> Iterator[Pair]:
    for place in joined(traces):
        first, second = place.layers
        if first is None or second is None or not in_body(first):
            continue
        layers = (first, second)
        yield Pair(layers, (mode_of(first, traces[0]), mode_of(second, traces[1])),
                   (served_by(first), served_by(second)))


def _modes_differ(pair: Pair) -> bool:
    return pair.modes[0] != pair.modes[1]


def _served_differ(pair: Pair) -> bool:
    return pair.served[0] != pair.served[1]


def _sentence(group: Sequence[Pair], traces: Sequence[Trace]) -> str:
    pair = group[0]
    sides = zip(traces, pair.modes, pair.served, strict=True)
    told = ", ".join(f"{engine_words(trace)} runs {part_words(mode, served)}"
                     for trace, mode, served in sides)
    because = _because(pair, traces)
    return (f"They differ in {_named(group)}: {told}" + (f", because {because}" if because else "")
            + f"{_kv(traces)}.")


def _named(group: Sequence[Pair]) -> str:
    names = list(dict.fromkeys(short_path(pair.layers[0]) for pair in group))
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _because(pair: Pair, traces: Sequence[Trace]) -> str | None:
    """Return why one engine does not do as the other does: what keeps it in 16 bits, else why it
    has not the other's kernel."""
    for layer, mode, trace in zip(pair.layers, pair.modes, traces, strict=True):
        if mode == PLAIN:
            return f"{engine_words(trace)} leaves them in 16 bits" + (
                f": {layer.why}" if layer.why else "")
    said = [_why_not(pair.layers[i], traces[i], pair.served[1 - i]) for i in (0, 1)]
    rejected = next((text for kind, text in said if kind == "rejected"), None)
    return rejected or next((text for kind, text in reversed(said) if kind == "absent"), None)


def _why_not(layer: Layer, trace: Trace, wanted: str | None) -> tuple[str, str | None]:
    """Return whether the engine rejects the wanted implementation for the layer, has none in the
    list, or only tries another first; and that in words."""
    engine = engine_words(trace)
    held = [c for c in (layer.selection.candidates if layer.selection else ())
            if implementation(c.kernel.split(" (")[0]) == wanted]
    if not held:
        return "absent", f"{engine} has no {wanted} kernel in the list of such layers"
    checks = [check for c in held if c.considered for check in c.checks if check.verdict != PASS]
    if checks:
        return "rejected", f"{engine} turns {wanted} down: {checks[-1].text}"
    return "later", None


def _kv(traces: Sequence[Trace]) -> str:
    words = [kv_words(trace) for trace in traces]
    if words[0] == words[1]:
        return ""
    return "; KV cache: " + ", ".join(f"{engine_words(trace)} {word}" for trace, word in zip(
        traces, words, strict=True))
