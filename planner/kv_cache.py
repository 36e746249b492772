"""The KV cache of one rank: what tokens take, and what the engine will print of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, MemoryFlags, Note
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.trace import Trace
from quantplan.planner.kv_blocks import Cached, cut, wants_packing
from quantplan.planner.kv_drafts import with_drafts
from quantplan.planner.kv_layers import Question, cached_layers
from quantplan.planner.kv_pool import Pool, make_pool
from quantplan.planner.kv_spec import CHUNK, FULL, STATE, WINDOW, Spec, Use
from quantplan.planner.lines import EXACT, BudgetLine, total_bytes
from quantplan.planner.serving import own_context
from quantplan.tables.errors import UsageError
from quantplan.tables.kv_cache_rows import kv_rules
from quantplan.tables.record import NamedTuple

GROUPS_SOURCE = "v1/core/kv_cache_utils.py:get_kv_cache_groups"
SPECS_SOURCE = "v1/kv_cache_interface.py:KVCacheSpec"
ASSUMED_BATCH_TOKENS = 8192
"""vllm engine/arg_utils.py: --max-num-batched-tokens of a server on a GPU of 70 GiB and more."""
TITLES = {"index_keys": "indexer keys", "index_vectors": "indexer keys",
          "compressed_keys": "indexer keys", "compressed": "compressed latent attention",
          "compressed_window": "latent window", "compressor_state": "compressor's tokens"}


class KvCache(NamedTuple):
    """What a request takes of one rank's KV cache.

    `lines` are bytes per token and sum to `bytes_per_token`, padding included; `request_lines` are
    what a request takes besides, its full windows and its states; `pool` is None where nothing is
    cached.
    """

    lines: tuple[BudgetLine, ...]
    request_lines: tuple[BudgetLine, ...]
    block_tokens: int
    context_limit: int
    pool: Pool | None
    notes: tuple[Note, ...] = ()

    @property
    def bytes_per_token(self) -> int:
        """Return what one more token of a request takes."""
        return total_bytes(self.lines)

    @property
    def fixed_bytes_per_request(self) -> int:
        """Return what a request takes whatever its length, once its windows are full."""
        return total_bytes(self.request_lines)

    def blocks(self, available_bytes: int) -> int:
        """Return the blocks of the pool; 1, the one never used, where nothing is cached."""
        return self.pool.blocks(available_bytes) if self.pool else 1

    def printed_tokens(self, available_bytes: int, max_model_len: int | None = None) -> int:
        """Return the tokens of the engine's line "GPU KV cache size"; 0 where it prints none."""
        length = max_model_len or self.context_limit
        return self.pool.printed_tokens(available_bytes, length) if self.pool else 0

    def max_concurrency(self, available_bytes: int, max_model_len: int | None = None) -> float:
        """Return the engine's "Maximum concurrency" for requests of that length."""
        length = max_model_len or self.context_limit
        return self.pool.max_concurrency(available_bytes, length) if self.pool else 0.0

    def least_bytes(self, tokens: int) -> int:
        """Return the bytes with which the engine starts for requests of so many tokens."""
        return self.pool.least_bytes(tokens) if self.pool else 0

    def largest_context(self, available_bytes: int, limit: int | None = None) -> int:
        """Return the longest request that the engine would start with, up to `limit`."""
        most = limit or self.context_limit
        return self.pool.largest_context(available_bytes, most) if self.pool else most

    def refusal(self, available_bytes: int, max_model_len: int | None = None) -> str | None:
        """Return the engine's words where a request of that length does not fit, or None."""
        length = max_model_len or self.context_limit
        return self.pool.refusal(available_bytes, length) if self.pool else None


def kv_cache(
    checkpoint: Checkpoint, structure: Structure, trace: Trace | None, deployment: Deployment,
    flags: MemoryFlags, *, version: str, dtype: str, runner: str = "v2",
) -> KvCache:
    """Return the KV cache of one rank of a deployment under vLLM `version`.

    `dtype` is the resolved serving dtype, `trace` says which backend and cache dtype each layer
    gets; without it blocks have the engine's default size. `flags` hold the resolved length and
    batch, `runner` is "v1" or "v2". Raises NotKnownError naming a layer, dtype, backend, draft or
    version whose cache is not known, UsageError for what does not divide over the ranks.
    """
    rules = kv_rules(version)
    question = Question(checkpoint, structure, deployment, flags, version=version, dtype=dtype)
    question.hear(trace)
    cached = with_drafts(cached_layers(question), flags.speculative_config, question.config,
                         structure.num_layers)
    asked = flags.max_model_len or 0
    limit = asked if asked > 0 else own_context(checkpoint)
    use = _use(cached, flags, rules, Use(limit, _in_flight(flags, rules, runner), flags.dcp,
                                         question.drafts))
    if not cached:
        return KvCache((), (), 0, limit, None)
    specs = cut(cached, rules, deployment.block_size)
    pool = make_pool(specs, rules, use, pp=flags.pp, num_layers=structure.num_layers,
                     override_blocks=flags.num_gpu_blocks_override, packs=wants_packing(cached))
    tokens = min((spec.block_tokens for spec in specs.values() if spec.grows), default=0)
    return KvCache(tuple(_token_lines(pool, version)), tuple(_request_lines(pool, version)),
                   tokens, limit, pool, tuple(_notes(cached)) if question.answers else ())


def _in_flight(flags: MemoryFlags, rules: Mapping[str, Any], runner: str) -> int:
    """Return the tokens of all batches that run ahead of one another
    (config/vllm.py:VllmConfig.max_concurrent_batches)."""
    batch = flags.max_num_batched_tokens or ASSUMED_BATCH_TOKENS
    if rules["in_flight"] == "batch":
        return batch
    return batch * (flags.pp + 1 if runner == "v2" or flags.pp == 1 else flags.pp)


def _use(cached: list[Cached], flags: MemoryFlags, rules: Mapping[str, Any], use: Use) -> Use:
    """Return the use with whether prefixes are cached, which takes further states."""
    kinds = {layer.spec.kind for layer in cached}
    if use.dcp > 1 and kinds & {WINDOW, CHUNK}:
        raise UsageError("decode context parallelism does not serve sliding windows",
                         wanted="--decode-context-parallel-size 1", found=str(use.dcp))
    asked, hybrid = flags.enable_prefix_caching, STATE in kinds and len(kinds) > 1
    caches = rules["caches_hybrid_prefixes"] and hybrid if asked is None else asked
    return use._replace(caches_prefixes=bool(caches))


def _token_lines(pool: Pool, version: str) -> Iterator[BudgetLine]:
    """Yield what each kind of layers takes for a token, and what the blocks' padding adds."""
    dcp, own = pool.use.dcp, 0
    for spec, count in _kinds(pool, grows=True):
        size = -(-count * spec.row_bytes // (dcp * spec.tokens_per_row))
        shared = f" / {dcp} ranks of a context" if dcp > 1 else ""
        shared += f" / {spec.tokens_per_row} tokens" if spec.tokens_per_row > 1 else ""
        own += size
        yield BudgetLine(f"KV cache of {_title(spec)}", size,
                         f"{count} layers x {_row(spec)}{shared}",
                         f"vllm {version} {SPECS_SOURCE}", EXACT)
    padding = pool.token_bytes - own
    if padding > 0:
        yield BudgetLine("padding of blocks", padding,
                         f"blocks of {pool.block_bytes:,} bytes for every group of layers",
                         f"vllm {version} {GROUPS_SOURCE}", EXACT)


def _request_lines(pool: Pool, version: str) -> Iterator[BudgetLine]:
    """Yield what each kind of windows and states takes for a request."""
    counted: dict[str, list[int]] = {}
    for group in pool.groups:
        if not group.first.grows:
            counted.setdefault(_title(group.first), []).append(pool.fixed_blocks(group))
    for title, blocks in counted.items():
        yield BudgetLine(f"KV cache of {title}", sum(blocks) * pool.block_bytes,
                         f"{len(blocks)} groups x {blocks[0]:,} blocks x {pool.block_bytes:,} "
                         "bytes", f"vllm {version} {SPECS_SOURCE}", EXACT)


def _kinds(pool: Pool, *, grows: bool) -> Iterator[tuple[Spec, int]]:
    """Yield each cache with the number of layers of the largest stage that have it."""
    counts: dict[Spec, int] = {}
    for group in pool.largest_stage:
        for spec in group.layers.values():
            if spec.grows == grows:
                counts[spec] = counts.get(spec, 0) + 1
    yield from counts.items()


def _row(spec: Spec) -> str:
    """Return how the bytes of one row are counted."""
    if len(spec.shape) != len(("heads", "key", "value", "dtype")):
        return f"{spec.row_bytes:,} bytes"
    heads, key, value, dtype = spec.shape
    named = "the model's dtype" if dtype == "auto" else dtype
    return (f"{heads} KV heads x {spec.row_bytes // int(heads)} bytes (key {key}, value {value}, "
            f"{named})")


def _title(spec: Spec) -> str:
    if spec.kind == STATE:
        return f"state ({spec.shape[0]})"
    if spec.shape and spec.shape[0] in TITLES:
        return TITLES[str(spec.shape[0])]
    if spec.latent:
        return "latent attention" if spec.kind == FULL else f"latent window of {spec.span_tokens:,}"
    return {FULL: "attention", WINDOW: f"window of {spec.span_tokens or 0:,} tokens",
            CHUNK: f"chunks of {spec.span_tokens or 0:,} tokens"}[spec.kind]


def _notes(cached: list[Cached]) -> Iterator[Note]:
    if any(layer.spec.kind != STATE and layer.backend is None for layer in cached):
        yield Note("kv-block-size-assumed", "the attention backend is not known for every layer: "
                   "blocks are as large as the known ones need",
                   "Pass --block-size, or name the GPU.", "info")
