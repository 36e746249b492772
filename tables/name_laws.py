"""What holds for the ids and aliases of every catalogue: spelling, and that none stands twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol


class Named(Protocol):
    """A row with an id and aliases, and the sentence for a broken law."""

    @property
    def row(self) -> Mapping[str, Any]:
        """Return the row."""

    def breaks(self, field: str, problem: str) -> str:
        """Return the sentence that names file, row, field and problem."""


def spellings(entry: Named) -> tuple[str, ...]:
    """Return the id and the aliases of a row."""
    return (entry.row["id"], *entry.row["aliases"])


def not_kebab(rows: Sequence[Named], joints: str, field: str) -> Iterator[str]:
    """Yield the spellings that are not lower case words and numbers joined by one of `joints`."""
    for entry in rows:
        for text in spellings(entry):
            if not re.fullmatch(rf"[a-z0-9]+([{joints}][a-z0-9]+)*", text):
                yield entry.breaks(field, f"{text!r} is not kebab case")


def used_twice(rows: Sequence[Named], key_of: Callable[[str], str] = str) -> Iterator[str]:
    """Yield the spellings whose lookup key another one, of the same row or not, already has."""
    owners: dict[str, str] = {}
    for entry in rows:
        for text in spellings(entry):
            key = key_of(text)
            if key in owners:
                yield entry.breaks("aliases", f"{text!r} already means {owners[key]}")
            owners[key] = entry.row["id"]
