"""Values drawn from a seed: the same on every machine and Python version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

Value = TypeVar("Value")
ABSENT = "{absent}"
PLACEHOLDER = re.compile(r"\{([a-z_\d]+)\}")


class Draw:
    """A source of choices. Only Random.random is used, whose numbers are documented never to
    change for a seed; `names` fills the placeholders of texts."""

    def __init__(self, seed: str, names: Mapping[str, Callable[[Draw], str | None]] | None = None
                 ) -> None:
        self._random = Random(seed).random
        self.names = names or {}

    def chance(self, probability: float) -> bool:
        """Return true with this probability."""
        return self._random() < probability

    def one(self, values: Sequence[Value]) -> Value:
        """Return one of the values."""
        return values[int(self._random() * len(values))]

    def weighted(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return one of the rows, in proportion to their `weight`."""
        point = self._random() * sum(row["weight"] for row in rows)
        for row in rows:
            point -= row["weight"]
            if point < 0:
                return row
        return rows[-1]

    def some(self, rows: Sequence[Value], most: int) -> list[Value]:
        """Return up to `most` different rows: often none, seldom many."""
        count = min(int(self._random() ** 2 * (most + 1)), len(rows))
        left = list(rows)
        return [left.pop(int(self._random() * len(left))) for _ in range(count)]

    def filled(self, value: Any) -> Any:
        """Return the value with every placeholder of its texts filled; None where a text is one
        placeholder that stands for nothing."""
        if isinstance(value, str):
            whole = PLACEHOLDER.fullmatch(value)
            if whole and whole[1] in self.names:
                return self.names[whole[1]](self)
            return PLACEHOLDER.sub(self._name, value)
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if isinstance(value, Mapping):
            return {self.filled(key): self.filled(item) for key, item in value.items()}
        return value

    def _name(self, match: re.Match[str]) -> str:
        name = self.names.get(match[1])
        return match[0] if name is None else str(name(self))


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at a dotted path (a file name's dot included) to `value`, or remove it for
    ABSENT; a path through something that is not a mapping changes nothing."""
    head, _, rest = path.partition(".")
    while rest and head not in tree and any(key.startswith(head + ".") for key in tree):
        more, _, rest = rest.partition(".")
        head = f"{head}.{more}"
    if rest:
        if isinstance(tree.get(head), dict):
            put(tree[head], rest, value)
    elif value == ABSENT:
        tree.pop(head, None)
    else:
        tree[head] = value


def leaves(tree: Any, path: str = "") -> list[str]:
    """Return the dotted paths of every field that holds no mapping."""
    found = []
    for key, value in tree.items():
        at = f"{path}.{key}" if path else str(key)
        found += leaves(value, at) if isinstance(value, dict) and value else [at]
    return found
