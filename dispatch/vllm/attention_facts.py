"""What attention is asked about: attn.*, mla.*, kv.* and flash.* of one module.

`Module.facts` are whole-model numbers that the family's row names
(ATTENTION_FACTS of tables/module_facts.py); this file turns them into one rank's, and adds what the
flags and the KV cache say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.structure import Structure
from quantplan.dispatch.vllm.context import Context, Site
from quantplan.dispatch.vllm.flash_attention import flash_facts

Facts = dict[str, Any]
Row = Mapping[str, Any]
MLA_SIZES = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "index_topk")
PASSED = ("sinks", "softcap", "alibi", "alibi_sqrt", "lookback", "lookback_said")
"""Facts that are whether the class passes the engine's attention something."""


def attention_facts(
    context: Context, site: Site, module: Row, dtype: str, per_head_scales: bool
) -> Facts:
    """Return every fact that backends of this module's list are asked about; `dtype` is the KV
    cache's, `module` the engine table's row of the module class."""
    own = site.module.facts
    mla = mla_facts(own)
    sizes = _sizes(context, own, mla)
    facts = {**context.facts, **_nature(context, own, module), **sizes, **mla,
             **kv_facts(context.table, dtype), "kv.per_head_scales": per_head_scales}
    head = sizes["attn.head_dim"]
    value_head = head if facts["attn.mla"] else own.get("v_head_dim", head)
    return {**facts, **flash_facts(context.table["attention"]["flash"], facts, head, value_head)}


def _sizes(context: Context, own: Row, mla: Facts) -> Facts:
    tp = context.deployment.tp
    heads, kv_heads = own.get("heads", 1) // tp, max(1, own.get("kv_heads", 1) // tp)
    latent = mla["mla.kv_lora_rank"] + mla["mla.qk_rope_head_dim"]
    head = latent if mla["mla.kv_lora_rank"] else own.get("head_dim", 0)
    return {"attn.heads": heads, "attn.kv_heads": kv_heads, "attn.group": heads // kv_heads,
            "attn.head_dim": head, "attn.topk_blocks": own.get("topk_blocks", 0),
            "attn.sparse_block": own.get("sparse_block", 0)}


def _nature(context: Context, own: Row, module: Row) -> Facts:
    is_mla = bool(module.get("mla"))
    sparse = bool(module.get("sparse") or own.get("index_topk"))
    encoder_only = own.get("causal") is False
    tokens = own.get("window") if is_mla else window(context, own)
    windowed = tokens is not None
    return {
        "attn.kind": _kind(is_mla, encoder_only, windowed and not module.get("early")),
        "attn.mla": is_mla, "attn.gqa": not is_mla, "attn.sparse": sparse,
        "attn.dense": not sparse,
        **{f"attn.{name}": bool(own.get(name)) for name in PASSED},
        "attn.mm_prefix": own.get("mm_prefix") in (True, "vision") or (
            context.structure.model_type in context.table["attention"]["mm_prefix"]["model_types"]),
        "attn.sliding_window": windowed,
        "attn.window": tokens, "attn.rswa": False,
        "attn.encoder_only": encoder_only,
        "attn.type": "ENCODER_ONLY" if encoder_only else "DECODER",
    }


def _kind(is_mla: bool, encoder_only: bool, windowed: bool) -> str:
    """Return the group of layers by which backend_per_kind knows one; latent attention does not
    tell of a window (v1/attention/selector.py:get_attn_spec_kind)."""
    if encoder_only:
        return "encoder_only_attention"
    if is_mla:
        return "mla_attention"
    return "sliding_window" if windowed else "full_attention"


def window(context: Context, own: Row) -> int | None:
    """Return the layer's window in tokens: its own, else the one that the cache config has for
    every layer, which it has only where no layer has one of its own."""
    return window_of(context.structure, own)


def window_of(structure: Structure, own: Row) -> int | None:
    """Return the window of a layer with the facts `own`, as window() does."""
    if "window" in own or any("window" in m.facts for m in structure.modules):
        found: int | None = own.get("window")
        return found
    return structure.sliding_window


def mla_facts(own: Row) -> Facts:
    """Return mla.*: sizes of latent attention, 0 where the module has none."""
    latent = own.get("kv_lora_rank")
    sizes = {name: (own.get(name) or 0) if latent else 0 for name in MLA_SIZES}
    nope, rope, value = (sizes[name] for name in MLA_SIZES[:3])
    return {
        **{f"mla.{name}": size for name, size in sizes.items()},
        "mla.dimensions": f"{nope}/{rope}/{value}",
        "mla.dimensions_text": f"(qk_nope_head_dim={nope}, qk_rope_head_dim={rope}, "
                               f"v_head_dim={value})",
        "mla.nope_with_rope": nope if rope else 0,
    }


def kv_facts(table: Row, dtype: str) -> Facts:
    """Return kv.*: what backends ask about a layer's cache dtype."""
    return {
        "kv.dtype": dtype, "kv.quantized": is_quantized(table, dtype),
        "kv.is_fp8": is_fp8(dtype), "kv.is_nvfp4": dtype.startswith("nvfp4"),
        "kv.fp8_or_auto": dtype == "auto" or is_fp8(dtype),
    }


def is_quantized(table: Row, dtype: str) -> bool:
    """Return whether the engine counts a cache dtype as quantized."""
    return any(row["id"] == dtype and row.get("quantized")
               for row in table["kv_cache"]["dtypes"])


def is_fp8(dtype: str) -> bool:
    """Return whether backends take a cache dtype for FP8, as the engine does: by its name."""
    return dtype.startswith("fp8")
