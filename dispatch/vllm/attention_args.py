"""--attention-backend and --attention-config as the engine reads them, and what it changes itself
(engine/arg_utils.py:EngineArgs.create_engine_config, model_executor/models/config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import applies, fill, holds
from quantplan.dispatch.vllm.context import Context, refuse
from quantplan.dispatch.vllm.kv_cache import is_packed

Row = Mapping[str, Any]


def argument_facts(context: Context, configured: str) -> dict[str, Any]:
    """Return the facts that the flags of attention set for the whole run; `configured` is the KV
    cache's dtype. Refuses a backend that the engine has no name for."""
    deployment, config = context.deployment, context.deployment.attention_config
    block = deployment.block_size
    capability = context.gpu.capability
    facts = {
        "flag.attention_backend": backend_name(context),
        "flag.flash_attn_version": config.get("flash_attn_version"),
        "flag.use_trtllm_attention": config.get("use_trtllm_attention", "auto"),
        "flag.mla_prefill_backend": config.get("mla_prefill_backend"),
        "attn.non_causal": bool(config.get("use_non_causal", False)),
        "attn.block_size": block, "attn.block_given": block is not None,
        "attn.cache_block": block or context.table["defaults"]["block_size"],
        "gpu.capability_tuple": "DeviceCapability(major={}, minor={})".format(
            *divmod(capability, 10)),
    }
    facts.update(_packed(context, facts, configured))
    facts.update(_head_mix(context, facts))
    return facts


def backend_name(context: Context) -> str | None:
    """Return --attention-backend as the engine names it, None for its own choice."""
    asked = context.deployment.attention_backend
    configured = context.deployment.attention_config.get("backend")
    table = context.table["attention"]
    if asked is not None and configured is not None:
        raise refuse("flags", "ValueError",
                     "attention_backend and attention_config.backend are mutually exclusive", None,
                     "engine/arg_utils.py:EngineArgs.create_engine_config",
                     hint="Give one of them.")
    name = asked or configured
    if name is None or name.lower() == "auto":
        return None
    if name.upper() not in table["names"]:
        words = {"backend": name.upper(), "names": ", ".join(table["names"])}
        raise refuse("flags", "ValueError", fill(table["unknown"], words), None,
                     table["names_source"])
    return name.upper()


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
