"""The KV cache of one rank: what tokens take, and what the engine will print of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.facts import Checkpoint, Deployment, MemoryFlags, Note
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.trace import Trace
from quantplan.planner.kv_blocks import Cached, cut, wants_packing
from quantplan.planner.kv_drafts import with_drafts
from quantplan.planner.kv_layers import Question, cached_layers
from quantplan.planner.kv_pool import Pool, make_pool, rounded_up
from quantplan.planner.kv_spec import CHUNK, FULL, STATE, WINDOW, Spec, Use
from quantplan.planner.lines import EXACT, BudgetLine, total_bytes
from quantplan.tables.errors import UsageError
from quantplan.tables.kv_cache_rows import kv_rules

GROUPS_SOURCE = "v1/core/kv_cache_utils.py:get_kv_cache_groups"
SPECS_SOURCE = "v1/kv_cache_interface.py:KVCacheSpec"
ASSUMED_BATCH_TOKENS = 8192
"""vllm engine/arg_utils.py: --max-num-batched-tokens of a server on a GPU of 70 GiB and more."""
ASSUMED_CONTEXT = 4096
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

    def largest_context(self, available_bytes: int, limit: int | None = None) -> int:
        """Return the longest request that the engine would start with, up to `limit`."""
        most = limit or self.context_limit
        return self.pool.largest_context(available_bytes, most) if self.pool else most

    def refusal(self, available_bytes: int, max_model_len: int | None = None) -> str | None:
        """Return the engine's words where a request of that length does not fit, or None."""
        length = max_model_len or self.context_limit
        return self.pool.refusal(available_bytes, length) if self.pool else None


def kv_cache(
    checkpoint: Checkpoint, structure: Structure, trace: Trace, deployment: Deployment,
    flags: MemoryFlags, *, version: str | None = None,
) -> KvCache:
    """Return the KV cache of one rank of a vLLM deployment; the rules are those of `version`,
    the trace's where it is None.

    Raises NotKnownError naming a layer, dtype, backend, draft or version whose cache is not known,
    UsageError for what does not divide over the ranks.
    """
    release = version or trace.asked or trace.version
    rules = kv_rules(release)
    question = Question(checkpoint, structure, trace, deployment, flags, version=release)
    cached = with_drafts(cached_layers(question), flags.speculative_config, question.config,
                         structure.num_layers)
    limit = _context_limit(checkpoint, flags)
    use = _use(cached, flags, rules, limit, question.drafts)
    if not cached:
        return KvCache((), (), 0, limit, None)
    specs = cut(cached, rules, deployment.block_size)
    pool = make_pool(specs, rules, use, pp=flags.pp, num_layers=structure.num_layers,
                     override_blocks=flags.num_gpu_blocks_override, packs=wants_packing(cached))
    tokens = min((spec.block_tokens for spec in specs.values() if spec.grows), default=0)
    return KvCache(tuple(_token_lines(pool, release)), tuple(_request_lines(pool, release)),
                   tokens, limit, pool, tuple(_notes(cached, flags)))


def _context_limit(checkpoint: Checkpoint, flags: MemoryFlags) -> int:
    """Return the longest request: the flag's, or the model's own limit."""
    if flags.max_model_len is not None and flags.max_model_len > 0:
        return flags.max_model_len
    own = checkpoint.text_config.get("max_position_embeddings")
    return own if isinstance(own, int) and own > 0 else ASSUMED_CONTEXT


def _use(
    cached: list[Cached], flags: MemoryFlags, rules: Mapping[str, Any], limit: int, drafts: int
) -> Use:
    kinds = {layer.spec.kind for layer in cached}
    if flags.dcp > 1 and kinds & {WINDOW, CHUNK}:
        raise UsageError("decode context parallelism does not serve sliding windows",
                         wanted="--decode-context-parallel-size 1", found=str(flags.dcp))
    hybrid = STATE in kinds and len(kinds) > 1
    asked = flags.enable_prefix_caching
    caches = STATE in kinds and (
        asked if asked is not None else hybrid and rules["caches_hybrid_prefixes"])
    batch = flags.max_num_batched_tokens or ASSUMED_BATCH_TOKENS
    # Batches run ahead of one another: two without stages, one more than there are stages with.
    batches = (flags.pp + 1) if rules["in_flight"] == "batches" else 1
    return Use(limit, batch * batches, flags.dcp, drafts, bool(caches))


def _token_lines(pool: Pool, version: str) -> Iterator[BudgetLine]:
    """Yield what each kind of layers takes for a token, and what the blocks' padding adds."""
    dcp, own = pool.use.dcp, 0
    for spec, count in _kinds(pool, grows=True):
        size = -(-count * spec.row_bytes // (dcp * spec.tokens_per_row))
        shared = f" / {dcp} ranks of a context" if dcp > 1 else ""
        shared += f" / {spec.tokens_per_row} tokens" if spec.tokens_per_row > 1 else ""
        own += size
        yield BudgetLine(_title(spec), size, f"{count} layers x {spec.row_bytes:,} bytes{shared}",
                         f"vllm {version} {SPECS_SOURCE}", EXACT)
    padding = rounded_up(pool.token_bytes) - own
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
        yield BudgetLine(title, sum(blocks) * pool.block_bytes,
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


def _title(spec: Spec) -> str:
    if spec.kind == STATE:
        return f"state ({spec.shape[0]})"
    if spec.shape and spec.shape[0] in TITLES:
        return TITLES[str(spec.shape[0])]
    if spec.latent:
        return "latent attention" if spec.kind == FULL else f"latent window of {spec.span_tokens:,}"
    return {FULL: "attention", WINDOW: f"window of {spec.span_tokens or 0:,} tokens",
            CHUNK: f"chunks of {spec.span_tokens or 0:,} tokens"}[spec.kind]


def _notes(cached: list[Cached], flags: MemoryFlags) -> Iterator[Note]:
    if any(layer.spec.kind != STATE and layer.backend is None for layer in cached):
        yield Note("kv-block-size-assumed", "the attention backend is not known for every layer: "
                   "blocks are as large as the known ones need",
                   "Pass --block-size, or name the GPU.", "info")
    windows = any(layer.spec.kind in {WINDOW, CHUNK} for layer in cached)
    if windows and flags.max_num_batched_tokens is None:
        yield Note("batch-tokens-assumed", "windows keep the tokens of batches in flight, here "
                   f"{ASSUMED_BATCH_TOKENS:,} each", "Pass --max-num-batched-tokens.", "info")
