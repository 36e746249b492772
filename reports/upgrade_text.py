"""What an upgrade changes, for a person: both verdicts, then each change and what decides it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quantplan.dispatch.upgrade import Change
from quantplan.reports.explain_text import Shown, error_text, question, verdict
from quantplan.reports.table_diff_text import difference_lines

SUBJECTS = {"start": "start-up", "method": "method", "kv_cache": "KV cache"}


def upgrade_text(old: Shown, new: Shown, changes: Sequence[Change]) -> str:
    """Return the whole text of one comparison, ending in a newline."""
    parts = [question(old), *_answers((old, new))]
    before = ((), *(change.because for change in changes))
    parts += ["\n".join(_lines(change, told=change.because == because))
              for change, because in zip(changes, before, strict=False)]
    if not changes:
        parts.append("nothing changes: method, kernels, modes, attention and findings are the same")
    return "\n\n".join(parts) + "\n"


def _answers(shown: Iterable[Shown]) -> Iterator[str]:
    for answer in shown:
        yield verdict(answer.trace)
        if answer.trace.error:
            yield error_text(answer.trace)


def _lines(change: Change, told: bool) -> Iterator[str]:
    """Yield what changes and why; reasons that the change before has too are not `told` again."""
    if change.subject == "finding":
        yield from (_finding(message, change) for message in change.names)
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
        return f"  error: {' -> '.join(kinds)}"
    return f"  {name}: {_value(old)} -> {_value(new)}"


def _subject(change: Change) -> str:
    if change.subject != "layer":
        return SUBJECTS[change.subject]
    counts = Counter(re.sub(r"\.\d+\.", ".*.", path) for path in change.names)
    return ", ".join(f"{path.replace('model.layers.*.', '')} ({count})"
                     for path, count in counts.items())


def _finding(message: str, change: Change) -> str:
    before, behind = change.fields.get("severity", (None, None))
    return f"new {behind}: {message}" if before is None else f"no more {before}: {message}"


def _value(value: Any) -> str:
    return "none" if value is None else str(value)
