"""Known names that are spelled like one that is not known: what a refusal asks back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def near_names(text: str, known: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return up to `count` of the known names that are spelled like `text` in any case, the nearest
    first: those of a ratio of `cutoff` or more (difflib)."""
    from difflib import get_close_matches

    spelled: dict[str, list[str]] = {}
    for name in known:
        spelled.setdefault(name.lower(), []).append(name)
    close = get_close_matches(text.lower(), spelled, n=count, cutoff=cutoff)
    return [name for key in close for name in spelled[key]][:count]


def did_you_mean(names: Sequence[str]) -> str:
    """Return the question that a refusal ends with, or "" without names."""
    return f"Did you mean {', '.join(names)}?" if names else ""
