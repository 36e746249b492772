"""Which layers share a block table: vllm v1/core/kv_cache_utils.py:get_kv_cache_groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.planner.kv_spec import FULL, STATE, WINDOW, Spec, Use
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Layers = Mapping[str, Spec]
Rules = Mapping[str, Any]


class Group(NamedTuple):
    """Layers that hold the same tokens in the same blocks; every block id is of one group."""

    layers: Layers

    @property
    def first(self) -> Spec:
        """Return the cache of its first layer."""
        return next(iter(self.layers.values()))

    @property
    def page_bytes(self) -> int:
        """Return the bytes that one block takes in all its layers."""
        return sum(spec.page_bytes for spec in self.layers.values())

    def blocks(self, use: Use) -> int:
        """Return the blocks of one request."""
        return max(spec.blocks(use) for spec in set(self.layers.values()))

    def of_stage(self, names: set[str]) -> Group:
        """Return the part of the group that one pipeline stage holds."""
        return Group({name: spec for name, spec in self.layers.items() if name in names})


def form_groups(layers: Layers, rules: Rules, *, packs: bool = False) -> list[Group]:
    """Return the groups of a model's layers, in the engine's order; `packs` says that a backend
    wants the pages of all layers side by side in each block.

    Raises NotKnownError where pages cannot be made equal: the engine raises NotImplementedError.
    """
    if not layers:
        return []
    if _one_type(list(layers.values())):
        return [Group(layers)]
    if packs and len({spec.page_bytes for spec in layers.values()}) > 1:
        return _packed(layers, rules)
    try:
        return _of_equal_size(_equal_pages(layers, rules), rules)
    except NotKnownError:
        whole = _promoted(layers) if rules["promotes_windows"] else None
        if whole is None:
            raise
        return [Group(whole)]


def _packed(layers: Layers, rules: Rules) -> list[Group]:
    from quantplan.planner.kv_packed import packed

    if not rules["packs"]:
        raise NotKnownError("how this version packs pages of several sizes",
                            hint="Ask about version 0.29.0 or newer.")
    buckets: list[dict[str, Spec]] = []
    for name, spec in layers.items():
        fitting = next((b for b in buckets if _one_type([*b.values(), spec])), None)
        if fitting is None:
            buckets.append({name: spec})
        else:
            fitting[name] = spec
    return [Group(part) for part in packed(buckets)]


def _one_type(specs: list[Spec]) -> bool:
    """Return whether all layers need the same number of blocks
    (v1/kv_cache_interface.py:UniformTypeKVCacheSpecs.is_uniform_type)."""
    first = specs[0]
    if first.kind == STATE:
        return all(spec.kind == STATE and spec.page_bytes == first.page_bytes for spec in specs)
    same = (first.kind, first.block_tokens, first.span_tokens)
    return all((spec.kind, spec.block_tokens, spec.span_tokens) == same for spec in specs)


def _equal_pages(layers: Layers, rules: Rules) -> Layers:
    """Return the layers with blocks or pages made as large as the largest page
    (unify_kv_cache_spec_page_size)."""
    largest = max(spec.page_bytes for spec in layers.values())
    return {name: _enlarged(name, spec, largest, rules) for name, spec in layers.items()}


def _enlarged(name: str, spec: Spec, page_bytes: int, rules: Rules) -> Spec:
    if spec.page_bytes == page_bytes:
        return spec
    if spec.kind == STATE:
        return spec._replace(padded_bytes=page_bytes)
    if page_bytes % spec.page_bytes == 0:
        times = page_bytes // spec.page_bytes
        return spec._replace(block_tokens=spec.block_tokens * times, padded_bytes=None)
    if spec.latent or not rules["pads_attention"]:
        raise NotKnownError(f"the pages of {name}: {spec.page_bytes} bytes do not divide "
                            f"{page_bytes}", hint="The engine raises NotImplementedError here.")
    return spec._replace(padded_bytes=page_bytes)


def _of_equal_size(layers: Layers, rules: Rules) -> list[Group]:
    """Return groups of as many layers as the rarest kind has, or the most frequent one where they
    are near (_get_kv_cache_groups_uniform_page_size)."""
    kinds: dict[Spec, list[str]] = {}
    for name, spec in layers.items():
        kinds.setdefault(spec, []).append(name)
    least, most = min(map(len, kinds.values())), max(map(len, kinds.values()))
    size = most if most < least * rules["near_counts"] else least
    found = []
    for names in kinds.values():
        number = -(-len(names) // size)
        found += [Group({name: layers[name] for name in names[i::number]}) for i in range(number)]
    return found


def _promoted(layers: Layers) -> Layers | None:
    """Return the layers with every token kept where a window stands beside latent attention
    (_try_get_full_allocation_fallback_groups), None elsewhere."""
    specs = list(layers.values())
    windows = [spec for spec in specs if spec.kind == WINDOW]
    full = {spec.block_tokens for spec in specs if spec.kind == FULL}
    if not (windows and any(spec.latent and spec.kind == FULL for spec in specs)):
        return None
    if len(full) != 1 or any(spec.kind not in {FULL, WINDOW} or (
            spec.latent and spec.kind == WINDOW) for spec in specs):
        return None
    block = full.pop()
    return {name: spec._replace(kind=FULL, span_tokens=None, block_tokens=block)
            if spec.kind == WINDOW else spec for name, spec in layers.items()}
