"""What an upgrade changes, for a person: both verdicts, then each change and what decides it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from quantplan.dispatch.trace import Trace
from quantplan.dispatch.upgrade import OF_TABLES, Change
from quantplan.reports.naming import engine_words
from quantplan.reports.question import Shown, question
from quantplan.reports.table_diff_text import difference_lines
from quantplan.reports.verdict_text import error_text, verdict

SUBJECTS = {"start": "start-up", "method": "method", "kv_cache": "KV cache"}


def upgrade_text(old: Shown, new: Shown, changes: Sequence[Change]) -> str:
    """Return the whole text of one comparison, ending in a newline."""
    parts = [question(old), *_answers(old.trace, new.trace)]
    if not _same_refusal(old.trace, new.trace):
        stands_in = any(f.id in OF_TABLES for f in (*old.trace.findings, *new.trace.findings))
        parts += _unchanged(changes, "nothing that is known" if stands_in else "nothing")
    before = ((), *(change.because for change in changes))
    parts += ["\n".join(_lines(change, engine_words(new.trace), told=change.because == because))
              for change, because in zip(changes, before, strict=False)]
    return "\n\n".join(parts) + "\n"


def _answers(old: Trace, new: Trace) -> Iterator[str]:
    same = _same_refusal(old, new)
    for trace in (old, new):
        yield "\n".join([verdict(trace), *(f"  {f.severity}: {f.message}" for f in trace.findings
                                           if f.id in OF_TABLES)])
        if trace.error and not same:
            yield error_text(trace)
    if same:
        yield f"both refuse it in the same words:\n\n{error_text(new)}"


def _same_refusal(old: Trace, new: Trace) -> bool:
    """Return whether both versions refuse, with the same words at the same layer."""
    words = [error and (error.type, error.message, error.layer)
             for error in (old.error, new.error)]
    return words[0] is not None and words[0] == words[1]


def _unchanged(changes: Sequence[Change], nothing: str) -> list[str]:
    """Say what stays, where only findings or nothing at all changes."""
    if not changes:
        return [f"{nothing} changes: method, kernels, modes, attention and findings are the same"]
    if all(change.subject == "finding" for change in changes):
        return ["method, kernels, modes and attention are the same; what is said of them changes:"]
    return []


def _lines(change: Change, version: str, told: bool) -> Iterator[str]:
    """Yield what changes and why; reasons that the change before has too are not `told` again."""
    if change.subject == "finding":
        yield from (_finding(message, change, version) for message in change.names)
    else:
        yield f"{_subject(change)}:"
        yield from (_field(name, old, new) for name, (old, new) in change.fields.items())
    if change.because:
        yield "  because of the same" if told else "  because"
    for difference in () if told else change.because:
        yield from (f"    {line}" for line in difference_lines(difference))


def _field(name: str, old: Any, new: Any) -> str:
    """Return one line; the verdicts above have the words of errors."""
    if name == "error":
        kinds = [_value(value).split(":", maxsplit=1)[0] for value in (old, new)]
        same = kinds[0] == kinds[1]
        return f"  error: {kinds[0]}, in other words" if same else f"  error: {' -> '.join(kinds)}"
    return f"  {name}: {_value(old)} -> {_value(new)}"


def _subject(change: Change) -> str:
    if change.subject != "layer":
        return SUBJECTS[change.subject]
    counts = Counter(re.sub(r"\.\d+\.", ".*.", path) for path in change.names)
    return ", ".join(f"{path.replace('model.layers.*.', '')} ({count})"
                     for path, count in counts.items())


def _finding(message: str, change: Change, version: str) -> str:
    """Return one line: what is found by `version` only, or no more."""
    before, behind = change.fields.get("severity", (None, None))
    if before and behind:
        return f"{behind} in {version}, was {before}: {message}"
    return f"new in {version}: {behind}: {message}" if behind else (
        f"gone in {version}: {before}: {message}")


def _value(value: Any) -> str:
    return "none" if value is None else str(value)
