"""One engine's answer for a person: its verdict, the reason, its error and what is found."""

from __future__ import annotations

from collections.abc import Sequence

from quantplan.dispatch.predicates import FAIL, PASS
from quantplan.dispatch.summary import in_body, mode_of, starts, weights_of
from quantplan.dispatch.trace import Candidate, Finding, Layer, Trace
from quantplan.reports.explain_view import rows
from quantplan.reports.layer_names import short_path
from quantplan.reports.naming import engine_words
from quantplan.reports.trace_text import grouped
from quantplan.tables.mode_rows import modes

INTEGER_WEIGHTS = ("W2A16", "W3A16", "W4A16", "W5A16", "W6A16", "W7A16", "W8A16")
LONGEST_LINE, BEGINNING = 1500, 500
"""Characters of an engine message's line that are shown whole, and of a longer one."""
PLAIN = "W16A16"
SHOWN_NAMES = 2
"""Layers that the heading names for one reason."""
VERDICTS = {"yes": "starts", "no": "does not start", "conditional": "starts (conditional)"}


def verdict(trace: Trace, width: int = 0) -> str:
    """Return whether the engine starts, and in which modes or at which stage not; the engine's
    name padded to `width` characters."""
    engine = asked_words(trace).ljust(width)
    words = VERDICTS[starts(trace)]
    if trace.error:
        return f"  {engine}   {words}: {trace.error.stage}"
    blocked = next((f for f in trace.findings if f.severity == "error"), None)
    if blocked:
        lines = [f"  {engine}   {words}: {blocked.stage}", f"  {blocked.message}"]
        return "\n".join([*lines, *([f"  next: {blocked.hint}"] if blocked.hint else [])])
    head = f"  {engine}   {words}"
    lines = [line for mode in mode_lines(trace) for line in mode]
    rest = [" " * (len(head) + 3) + line for line in lines[1:]]
    return "\n".join([f"{head}   {lines[0]}", *rest]) if lines else head


def asked_words(trace: Trace) -> str:
    """Return the engine's name, with the version asked about where another one's table answers."""
    return engine_words(trace) + (f" for {trace.asked}" if trace.asked else "")


def mode_lines(trace: Trace) -> list[list[str]]:
    """Return, per mode of linear layers and experts, what runs and why, then what that buys; the
    mode with most weights first."""
    found: dict[str, list[Layer]] = {}
    for layer in trace.layers:
        if in_body(layer):
            found.setdefault(mode_of(layer, trace), []).append(layer)
    lines = [_mode_line(mode, found[mode]) for mode in sorted(
        found, key=lambda mode: -sum(map(weights_of, found[mode])))]
    return [line for i, line in enumerate(lines) if line not in lines[:i]]


def _mode_line(mode: str, layers: list[Layer]) -> list[str]:
    layer = layers[0]
    told = _told_mode(mode, layer)
    row = modes().get(told, {"short": mode, "words": "not known from here", "effect": ""})
    reason = _plain(layers) if mode == PLAIN else why_mode(layer, told)
    because = f", because {reason}" if reason else ""
    effect = f"{row['effect'][:1].upper()}{row['effect'][1:]}." if row["effect"] else ""
    return [f"{row['short']}: {row['words']}{because}", *([effect] if effect else []),
            *_choice(layer, told)]


def _plain(layers: list[Layer]) -> str:
    """Return why each of these layers stays in 16 bits, and which it is true of."""
    named: dict[str, dict[str, None]] = {}
    for layer in layers:
        if layer.why:
            named.setdefault(layer.why, {})[short_path(layer)] = None
    return "; ".join(f"{why} ({_few(list(names))})" for why, names in named.items())


def _few(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (" ..." if len(names) > SHOWN_NAMES else "")


def _told_mode(mode: str, layer: Layer) -> str:
    """Return the mode whose words fit a layer's weights: Humming calls all 4-bit weights W4A16,
    those of an nvfp4 or mxfp4 list too."""
    family = layer.selection.family.split("_")[0] if layer.selection else ""
    return f"{mode}_{family}" if f"{mode}_{family}" in modes() else mode


def _choice(layer: Layer, mode: str) -> list[str]:
    """Say why this kernel and not the one before it, where the mode does not say it."""
    selection = layer.selection
    if mode not in INTEGER_WEIGHTS or selection is None or selection.kernel is None:
        return []
    before = [c for c in selection.rejected if c.decisive]
    out = f"; not {before[-1].kernel}: {_closest(before[-1])}" if before else ""
    return [f"{selection.kernel} is the first of its list to accept{out}."]


def _closest(candidate: Candidate) -> str:
    """Return the last failed check of the decisive fact: the one that says most ("must be 9.0"
    after "must be at least 9.0")."""
    fact = candidate.decisive.fact if candidate.decisive else ""
    return [c.text for c in candidate.checks if c.verdict != PASS and c.fact == fact][-1]


def why_mode(layer: Layer, mode: str) -> str | None:
    """Return why a layer does not compute in fewer bits, or None when nothing better was asked."""
    if layer.why:
        return layer.why
    if "A16" not in mode or mode == "W16A16" or not layer.selection:
        return None
    better = [c for c in layer.selection.rejected if _quantizes_activations(c)]
    plain = next((k.plain for c in better for k in c.checks
                  if k.verdict != PASS and k.plain), None)
    if plain:
        return plain
    if mode in INTEGER_WEIGHTS or layer.asked in (None, "none"):
        return "the checkpoint quantizes weights only"
    if not better:
        return None
    decisive = better[-1].decisive
    return f"{better[-1].kernel} is out: {decisive.text}" if decisive else None


WEIGHT_ONLY = ("marlin", "humming", "emulation", "w4a16")


def _quantizes_activations(candidate: Candidate) -> bool:
    """Return whether a candidate for these FP8 or FP4 weights computes in as many bits, by its
    name."""
    name = candidate.kernel.lower()
    other_scheme = any(c.fact == "quant.scheme" and c.verdict == FAIL for c in candidate.checks)
    return ("fp8" in name or "fp4" in name) and not other_scheme and not any(
        part in name for part in WEIGHT_ONLY)


def error_text(trace: Trace) -> str:
    """Return the engine's error, what to do next and where it is raised."""
    error = trace.error
    assert error is not None
    where = f" at {error.layer}" if error.layer else ""
    lines = [f"  {error.type}{where}:",
             *(f"    {_shortened(line)}" for line in error.message.splitlines())]
    if not error.message:
        lines.append("    (an assertion without text)")
    if error.hint:
        lines.append(f"  next: {error.hint}")
    lines.append(f"  source: {error.source}")
    return "\n".join(lines)


def _shortened(line: str) -> str:
    """Return a line of the engine's as it is, or the beginning of one that fills a screen."""
    if len(line) <= LONGEST_LINE:
        return line
    left_out = len(line) - BEGINNING
    return f"{line[:BEGINNING]}... ({left_out:,} more characters; --format json has all of it)"


def conditions_text(trace: Trace) -> str:
    """Say both outcomes where a fact that is not known from here decides."""
    told: dict[str, list[str]] = {}
    for layer, _ in rows(trace.layers):
        for other in layer.selection.alternatives if layer.selection else ():
            facts = " and ".join(f"{fact} is true" for fact in other.if_facts)
            fallback = layer.kernel or "no kernel: the engine refuses"
            told.setdefault(f"{other.kernel} if {facts}, else {fallback}", []).append(
                short_path(layer))
    lines = grouped(told)
    return "\n".join(["not known from here:", *lines]) if lines else ""


def findings_text(trace: Trace, told_of_both: Sequence[Finding] = ()) -> str:
    """Return the findings that neither the head nor `told_of_both` tells."""
    lines = []
    told = next((f for f in trace.findings if f.severity == "error" and not trace.error), None)
    for finding in trace.findings:
        if finding is told or finding.id in _in_the_head(trace) or finding in told_of_both:
            continue
        lines.append(f"  {finding.severity}: {finding.message} [{finding.stage}]")
        if finding.hint:
            lines.append(f"    next: {finding.hint}")
    return "\n".join(lines)


def _in_the_head(trace: Trace) -> tuple[str, ...]:
    """Return the findings that the head has told: the one mode of all quantized layers is there."""
    modes = {layer.mode for layer in trace.layers if layer.kernel and layer.mode}
    return ("hypothetical", "weight-only") if len(modes) == 1 else ("hypothetical",)
