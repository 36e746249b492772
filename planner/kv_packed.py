"""Groups whose layers' pages differ in size and lie side by side in a block, as DeepSeek-V4's do
(vllm v1/core/kv_cache_utils.py:_get_packed_kv_cache_groups)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantplan.planner.kv_spec import STATE, WINDOW, Spec
from quantplan.tables.record import NamedTuple

Layers = Mapping[str, Spec]


class Bucket(NamedTuple):
    """Layers that need the same number of blocks, by the size of their pages."""

    layers: Layers
    pages: Mapping[int, Sequence[str]]

    @property
    def repeats(self) -> int:
        """Return how many layers share a page size at most."""
        return max(map(len, self.pages.values()))

    @property
    def balanced(self) -> bool:
        """Return whether every page size has as many layers: one of each is a pattern."""
        return len(set(map(len, self.pages.values()))) == 1

    def widest_bytes(self, groups: int) -> int:
        """Return the bytes of a block of the largest of so many groups."""
        return sum(-(-len(names) // groups) * page for page, names in self.pages.items())

    def split(self, groups: int) -> list[Layers]:
        """Return the bucket's patterns, dealt out to so many groups."""
        if groups == 1:
            return [self.layers]
        patterns = list(zip(*self.pages.values(), strict=False))
        return [{name: self.layers[name] for pattern in patterns[i::groups] for name in pattern}
                for i in range(groups)]


def packed(buckets: Sequence[Layers]) -> list[Layers]:
    """Return the layers of each group; `buckets` hold layers of one type each."""
    found = [Bucket(layers, _by_page(layers)) for layers in buckets]
    least = max((b.repeats for b in found if b.balanced and len(b.pages) > 1), default=0)
    repeats = nearest_divisor([b.repeats for b in found if b.balanced], least) if least else None
    counts = [-(-b.repeats // repeats) if repeats and b.balanced else 1 for b in found]
    states = [_is_state(b, repeats) for b in found]
    anchor = max(b.widest_bytes(len(b.layers) if state else count)
                 for b, count, state in zip(found, counts, states, strict=True))
    return [part for b, count, state in zip(found, counts, states, strict=True)
            for part in b.split(_dealt(b, count, anchor) if state else count)]


def _by_page(layers: Layers) -> dict[int, list[str]]:
    pages: dict[int, list[str]] = {}
    for name, spec in layers.items():
        pages.setdefault(spec.page_bytes, []).append(name)
    return pages


def _is_state(bucket: Bucket, repeats: int | None) -> bool:
    """Return whether a bucket may be dealt out down to one layer for every group."""
    kind = next(iter(bucket.layers.values())).kind
    return kind == STATE or (repeats is None and kind == WINDOW)


def _dealt(bucket: Bucket, count: int, anchor_bytes: int) -> int:
    """Return the groups of states that make no block larger than it has to be."""
    first = next(iter(bucket.layers.values()))
    fitting = max(anchor_bytes // first.page_bytes, 1)
    return max(count, -(-len(bucket.layers) // fitting))


def nearest_divisor(values: Sequence[int], least: int) -> int:
    """Return the number from `least` on to whose multiples the values are filled up with the least
    padding; of equals the largest (_approximate_gcd)."""
    candidates = range(max(1, least), max(*values, least) + 1)
    return min(candidates, key=lambda d: (sum(-value % d for value in values), -d))
