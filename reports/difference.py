"""Where two engines' answers to one question differ, and why, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from quantplan.tables.record import NamedTuple

LONGEST_REASON = 160
"""Characters of an engine's error that the sentence holds."""
SHOWN_NAMES = 3
"""Layers that the sentence names."""
SHOWN_GROUPS = 3
"""Groups of layers that the sentence tells; of others, how many there are."""
PLAIN = "W16A16"
FACTS = {"fp8.backend": "the FP8 GEMM backend", "fp4.backend": "the FP4 GEMM backend",
         "moe.backend": "the MoE runner backend", "gpu.capability": "the compute capability"}
"""Facts of a table's rows in words."""


class Pair(NamedTuple):
    """One place of the model as two engines serve it: layers, modes and implementations."""

    layers: tuple[Layer, Layer]
    modes: tuple[str, str]
    served: tuple[str | None, str | None]

    @property
    def differs(self) -> bool:
        """Return whether the engines compute otherwise, or with another's kernels."""
        return self.modes[0] != self.modes[1] or self.served[0] != self.served[1]

    @property
    def key(self) -> tuple[object, ...]:
        """Return what pairs that are told together share."""
        return self.modes, self.served


def difference(one: Trace, other: Trace) -> str:
    """Return the sentence: about a start that is refused, else modes and kernels, those whose modes
    differ first; and the KV cache."""
    traces = (one, other)
    refused = [starts(trace) == "no" for trace in traces]
    if any(refused):
        return _start(traces, refused)
    groups = _groups(traces)
    differing = [group for group in groups if group[0].differs]
    if differing:
        return _sentence(differing, traces)
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
    """Return the places that an engine quantizes, those that both serve alike together: those
    whose modes differ first, then those with most weights."""
    found: dict[tuple[object, ...], list[Pair]] = {}
    for pair in _pairs(traces):
        if pair.modes != (PLAIN, PLAIN):
            found.setdefault(pair.key, []).append(pair)
    return sorted(found.values(), key=lambda group: (
        group[0].modes[0] == group[0].modes[1], -sum(weights_of(pair.layers[0]) for pair in group)))


def _pairs(traces: Sequence[Trace]) -> Iterator[Pair]:
    for place in joined(traces):
        first, second = place.layers
        if first is None or second is None or not in_body(first):
            continue
        layers = (first, second)
        yield Pair(layers, (mode_of(first, traces[0]), mode_of(second, traces[1])),
                   (served_by(first), served_by(second)))


def _sentence(groups: Sequence[Sequence[Pair]], traces: Sequence[Trace]) -> str:
    told: list[str] = []
    reasons: list[str | None] = []
    for group in groups[:SHOWN_GROUPS]:
        sides = zip(traces, group[0].modes, group[0].served, strict=True)
        words = ", ".join(f"{engine_words(trace)} runs {part_words(mode, served)}"
                          for trace, mode, served in sides)
        because = _because(group[0], traces)
        new = because if because not in reasons else None
        reasons.append(because)
        told.append(f"in {_named(group)}: {words}" + (f", because {new}" if new else ""))
    left = sum(len(group) for group in groups[SHOWN_GROUPS:])
    more = f"; and in {left} more layers" if left else ""
    return f"They differ {'; '.join(told)}{more}{_kv(traces)}."


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
    rejected, later, absent = ([text for kind, text in said if kind == wanted]
                               for wanted in ("rejected", "later", "absent"))
    return rejected[0] if rejected else " and ".join([*later[:1], *absent[-1:]])


def _why_not(layer: Layer, trace: Trace, wanted: str | None) -> tuple[str, str]:
    """Return whether the engine rejects the wanted implementation for the layer, has none in the
    list, or only tries another first; and that in words."""
    engine = engine_words(trace)
    held = [c for c in (layer.selection.candidates if layer.selection else ())
            if implementation(c.name) == wanted]
    if not held:
        return "absent", f"{engine} has no {wanted} kernel in the list of such layers"
    checks = [check for c in held if c.considered for check in c.checks if check.verdict != PASS]
    if checks:
        text = next((check.plain for check in checks if check.plain), None) or _plain(
            checks[-1].text)
        return "rejected", f"{engine} turns {wanted} down: {text}"
    return "later", f"{engine} tries {served_by(layer)} before {wanted}"


def _plain(text: str) -> str:
    for fact, words in FACTS.items():
        text = text.replace(fact, words)
    return text


def _kv(traces: Sequence[Trace]) -> str:
    words = [kv_words(trace) for trace in traces]
    if words[0] == words[1]:
        return ""
    return "; KV cache: " + ", ".join(f"{engine_words(trace)} {word}" for trace, word in zip(
        traces, words, strict=True))
