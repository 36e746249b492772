"""--attention-backend and --attention-config as the engine reads them, and what it changes itself
(engine/arg_utils.py:EngineArgs.create_engine_config, model_executor/models/config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import applies, holds
from quantplan.dispatch.vllm.attention_config import (
    backend_name,
    backends_of_kinds,
    prefill_name,
)
from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.kv_cache import is_packed

Row = Mapping[str, Any]


def argument_facts(context: Context, configured: str) -> dict[str, Any]:
    """Return the facts that the flags of attention set for the whole run; `configured` is the KV
    cache's dtype. Refuses a backend that the engine has no name for."""
    table, deployment = context.table, context.deployment
    config = {name: v for name, v in deployment.attention_config.items() if v is not None}
    block, capability = deployment.block_size, context.gpu.capability
    cache_block = block or table["defaults"]["block_size"]
    facts = {
        "flag.attention_backend": backend_name(table, deployment),
        "flag.backend_per_kind": backends_of_kinds(table, deployment),
        "flag.flash_attn_version": config.get("flash_attn_version"),
        "flag.use_trtllm_attention": config.get("use_trtllm_attention", "auto"),
        "flag.mla_prefill_backend": prefill_name(table, deployment),
        "flag.indexer_kv_dtype": config.get("indexer_kv_dtype", "auto"),
        "flag.mm_encoder_attn_backend": (deployment.mm_encoder_attn_backend or "").upper() or None,
        "flag.mm_encoder_attn_dtype": deployment.mm_encoder_attn_dtype,
        "attn.non_causal": config.get("use_non_causal", False),
        "attn.block_size": block, "attn.block_given": block is not None,
        "attn.cache_block": cache_block, **_flex(config, cache_block),
        "gpu.capability_tuple": "DeviceCapability(major={}, minor={})".format(
            *divmod(capability, 10)),
    }
    facts.update(_packed(context, facts, configured))
    facts.update(_head_mix(context, facts))
    return facts


def _flex(config: Row, block: int) -> dict[str, Any]:
    """Return what FlexAttention's tiles leave of a block of the cache."""
    tiles = {name: config.get(f"flex_attn_block_{name}") for name in "mn"}
    return {**{f"flag.flex_attn_block_{name}": tile for name, tile in tiles.items()},
            **{f"flex.spare_{name}": block - (tile or 0) for name, tile in tiles.items()}}


def _packed(context: Context, facts: Row, configured: str) -> dict[str, Any]:
    """A packed KV cache holds FlashAttention to an older version."""
    version = facts["flag.flash_attn_version"]
    held = context.table["kv_cache"]["packed"]["flash_version"]
    if is_packed(context.table, configured) and (version is None or version > held):
        return {"flag.flash_attn_version": held}
    return {}


def _head_mix(context: Context, facts: Row) -> dict[str, Any]:
    """Models with heads of several sizes: one version of FlashAttention for all, else Triton."""
    flash = context.table["attention"]["flash"]
    row, backend = flash["head_mix"], facts["flag.attention_backend"]
    heads = {m.facts.get("head_dim", 0) for m in context.structure.modules
             if m.kind == "attention" and m.layers}
    if context.structure.architecture not in row["architectures"] or len(heads) < 2:
        return {}
    known = {**context.facts, **facts}
    runs = any(r["version"] == row["version"] and holds(r, known) for r in flash["supported"])
    if not runs or max(heads) > row["max_head"]:
        return {} if backend else {"flag.attention_backend": row["fallback"]}
    given = facts["flag.flash_attn_version"] is not None
    if given or backend not in (None, *row["backends"]) or applies(row["per_layer"], known):
        return {}
    return {"flag.flash_attn_version": row["version"]}
