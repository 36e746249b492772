"""How many tokens a block holds: the smallest size that every attention backend takes, made larger
where states or layers of another dtype share the pool (vllm platforms/interface.py:Platform)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import lcm
from typing import Any

from quantplan.planner.kv_spec import STATE, WINDOW, Spec
from quantplan.tables.errors import NotKnownError
from quantplan.tables.kv_cache_rows import kernel_blocks
from quantplan.tables.record import NamedTuple

DEFAULT_TOKENS = 16
"""vllm config/cache.py:CacheConfig.DEFAULT_BLOCK_SIZE."""
BIG_HEAD, BIG_HEAD_TOKENS = 256, 128
"""vllm v1/attention/backends/flash_attn.py: heads whose kernel on 10.x and 11.x has pages of its
own size."""


class Cached(NamedTuple):
    """One layer's cache before blocks are cut: its spec holds one token, `backend` is None where
    the class has none; `plain` says that it keeps the model's dtype beside quantized layers."""

    name: str
    spec: Spec
    backend: str | None = None
    plain: bool = False


class Kernel(NamedTuple):
    """What block sizes one backend takes."""

    sizes: tuple[int, ...]
    multiple: bool
    preferred: int | None = None

    def takes(self, tokens: int) -> bool:
        """Return whether blocks of so many tokens are whole kernel blocks."""
        return any(tokens % size == 0 for size in self.sizes)


def kernel(backend: str) -> Kernel:
    """Return what a backend takes; raise NotKnownError for one without a row."""
    row = kernel_blocks().get(backend)
    if row is None:
        raise NotKnownError(f"the block sizes of {backend}", wanted="one of " + ", ".join(
            kernel_blocks()), hint="A row of blocks in tables/kv/vllm.yaml teaches it.")
    sizes = row.get("sizes") or [row["multiple_of"]]
    return Kernel(tuple(sizes), "multiple_of" in row, row.get("preferred"))


def common_tokens(backends: Sequence[str]) -> int:
    """Return the tokens of a block where no flag says so."""
    kernels = [kernel(name) for name in dict.fromkeys(backends)]
    if not kernels:
        return DEFAULT_TOKENS
    if len(kernels) == 1:
        only = kernels[0]
        default = DEFAULT_TOKENS if only.takes(DEFAULT_TOKENS) else min(only.sizes)
        return only.preferred or default
    if all(k.takes(DEFAULT_TOKENS) for k in kernels):
        return DEFAULT_TOKENS
    sizes = sorted({lcm(*each) for each in product(*(k.sizes for k in kernels))})
    return next(size for size in sizes if all(k.takes(size) for k in kernels))


def cut(
    layers: Sequence[Cached], rules: Mapping[str, Any], asked: int | None = None
) -> dict[str, Spec]:
    """Return layer name -> its cache in blocks; `asked` is --block-size.

    Raises NotKnownError for a backend without a row.
    """
    attention = [layer for layer in layers if layer.spec.kind != STATE]
    states = [layer for layer in layers if layer.spec.kind == STATE]
    backends = [layer.backend for layer in attention if layer.backend]
    tokens = asked or common_tokens(backends)
    page = None
    if attention and states:
        tokens, page = _beside_states(attention, states, tokens, rules)
    shared = None
    if rules["mixed_dtypes"]:
        tokens, shared = _beside_plain(attention, tokens, page)
    page = shared if shared and page else page
    return {layer.name: _cut(layer, tokens, page, shared, rules) for layer in layers}


def _cut(
    layer: Cached, tokens: int, page: int | None, shared: int | None, rules: Mapping[str, Any]
) -> Spec:
    spec = layer.spec
    if spec.kind == STATE:
        return spec._replace(padded_bytes=page if page != spec.own_bytes else None)
    if spec.kind == WINDOW and not spec.latent and rules["window_blocks"] == "kernel":
        return _window(layer, tokens, shared)
    # A class that names its block keeps it.
    return spec if spec.block_tokens > 1 else spec._replace(block_tokens=tokens)


def wants_packing(layers: Sequence[Cached]) -> bool:
    """Return whether the pages of all layers lie side by side in each block, as DeepSeek-V4's
    indexer wants it (v1/attention/backends/mla/indexer.py:DeepseekV4IndexerBackend)."""
    return any(layer.spec.alignment_bytes > 1 for layer in layers)


def _window(layer: Cached, tokens: int, shared: int | None) -> Spec:
    """Return a window's cache in the largest blocks of its kernel that the page has room for
    (model_executor/layers/attention/attention.py:_largest_kernel_block_within)."""
    spec = layer.spec
    most = (shared or spec.row_bytes * tokens) // spec.row_bytes
    taken = kernel(layer.backend) if layer.backend else Kernel((1,), True)
    sizes = [max(size, most // size * size) if taken.multiple else size for size in taken.sizes]
    fitting = [size for size in sizes if size <= most]
    block = max(fitting) if fitting else min(sizes)
    return spec._replace(block_tokens=block, padded_bytes=shared)


def _beside_states(
    attention: Sequence[Cached], states: Sequence[Cached], tokens: int, rules: Mapping[str, Any]
) -> tuple[int, int]:
    """Return tokens and bytes of a block of one layer that is as large as a state
    (_align_hybrid_block_size)."""
    first = attention[0]
    token_bytes, latent = first.spec.row_bytes, first.spec.latent
    state = max(layer.spec.own_bytes for layer in states)
    unit = max(_smallest(first), tokens)
    if latent:
        unit = max(unit, rules["latent_alignment"])
    needed = unit * -(-state // (unit * token_bytes))
    every = lcm(*(_smallest(layer) for layer in attention))
    tokens = max(tokens, every * -(-needed // every))
    return tokens, tokens * token_bytes


def _smallest(layer: Cached) -> int:
    return min(kernel(layer.backend).sizes) if layer.backend else 1


def _beside_plain(
    attention: Sequence[Cached], tokens: int, page: int | None
) -> tuple[int, int | None]:
    """Return the block in which a quantized layer's page covers one of the model's dtype, and that
    page, None where no layer keeps it (_align_heterogeneous_kv_block_size)."""
    own = next(_row_bytes(attention, plain=False), None)
    plain = next(_row_bytes(attention, plain=True), None)
    if own is None or plain is None or own == plain:
        return tokens, None
    smallest = _smallest(attention[0])
    unit = max(smallest, tokens)
    needed = max(plain * smallest, page or 0)
    tokens = max(tokens, unit * -(-needed // (unit * own)))
    return tokens, tokens * own


def _row_bytes(attention: Sequence[Cached], *, plain: bool) -> Iterator[int]:
    return (layer.spec.row_bytes for layer in attention if layer.plain == plain)
