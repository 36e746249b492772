"""Laws of an engine table's attention part that a schema cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Engine = Mapping[str, Any]
Where = tuple[str, Mapping[str, Any]]


def attention_orders_end(engine: Engine) -> Iterator[str]:
    """Every order names backends with a row, and the last one of each list always applies."""
    attention = engine["attention"]
    parts = (("attention", attention), ("attention.prefill", attention["prefill"]))
    for where, part in parts:
        known = {row["id"] for row in part["backends"]}
        last = {order.get("list", ""): order for order in part["order"]}
        yield from (f"{where}.order: no backend row {name}" for order in part["order"]
                    for name in order["backends"] if name not in known)
        yield from (f"{where}.order: the last order of {name or 'the list'} has a condition; "
                    "wanted one that always applies" for name, order in last.items()
                    if "when" in order or "needs" in order)


def attention_names_are_known(engine: Engine) -> Iterator[str]:
    """Modules, forced choices and inherited rows name lists, backends and aspects with a row."""
    attention = engine["attention"]
    lists = {order["list"] for order in attention["order"]}
    known = {row["id"] for row in attention["backends"]}
    aspects = {aspect["id"] for aspect in attention["aspects"]}
    for row in attention["modules"]:
        if row.get("list") not in lists and "backend" not in row:
            yield f"attention.modules[{row['id']}]: neither a list with an order nor a backend"
        if "unequal" in row and row["unequal"] not in lists:
            yield f"attention.modules[{row['id']}]: unequal is no list with an order"
    for row in attention["forced"]:
        if row["list"] not in lists or row.get("backend", "") not in {"", *known}:
            yield f"attention.forced[{row['list']}]: no such list or backend"
    for row in attention["backends"]:
        if row.get("like", row["id"]) not in known:
            yield f"attention.backends[{row['id']}]: like no backend row"
        yield from (f"attention.backends[{row['id']}]: no aspect {name}"
                    for name in row.get("supports", ()) if name not in aspects)


def attention_words_have_places(engine: Engine) -> Iterator[str]:
    """What a backend requires is said in the words of an aspect, which give it its place."""
    places = {aspect["says"] for aspect in engine["attention"]["aspects"]}
    for row in engine["attention"]["backends"]:
        yield from (f"attention.backends[{row['id']}]: {need.get('says')!r} is no aspect's words"
                    for need in row.get("requires", ()) if need.get("says") not in places)


def requirements(attention: Mapping[str, Any]) -> Iterator[Where]:
    """Yield every requirement of the attention part with the place it stands in."""
    for rows in (attention["backends"], attention["prefill"]["backends"], attention["modules"]):
        for backend in rows:
            for phase in ("imports", "requires", "combination", "refuses", "runs_on",
                          "later"):
                for position, row in enumerate(backend.get(phase, ())):
                    yield f"attention[{backend['id']}].{phase}[{position}]", row
    flash = attention["flash"]
    for rows in (attention["order"], flash["supported"], flash["rewrites"]):
        for order in rows:
            yield from (("attention.needs", need) for need in order.get("needs", ()))


def conditions(engine: Engine) -> Iterator[Where]:
    """Yield every other condition on facts of the attention and KV cache parts."""
    attention = engine["attention"]
    flash = attention["flash"]
    for rows in (attention["order"], attention["prefill"]["order"], flash["first"],
                 flash["rewrites"], flash["fp8_kv"], engine["kv_cache"]["changes"],
                 attention["encoder"]["refused"]):
        yield from (("attention: a when", row["when"]) for row in rows if "when" in row)
    yield "attention.flash.head_mix.per_layer", flash["head_mix"]["per_layer"]
    for row in attention["backends"]:
        rewrites = (*row.get("cache", ()), *row.get("module_when", ()))
        yield from ((f"attention[{row['id']}]", r["when"]) for r in rewrites if "when" in r)
        yield f"attention[{row['id']}].no_prefill", row.get("no_prefill", {})


def conditions_are_facts(engine: Engine) -> Iterator[str]:
    """Every condition and every aspect asks about facts of attention."""
    known = FACTS | {f"env.{row['id']}" for row in engine["environment"]}
    for where, when in conditions(engine):
        yield from (f"{where}: unknown fact {name}" for name in when if name not in known)
    for aspect in engine["attention"]["aspects"]:
        if aspect.get("fact", "attn.mla") not in known:
            yield f"attention.aspects[{aspect['id']}]: unknown fact {aspect['fact']}"


FACTS = {
    "gpu.capability", "gpu.family", "gpu.name", "gpu.capability_text", "gpu.capability_tuple",
    "gpu.below_80", "flag.use_trtllm_attention", "flag.indexer_kv_dtype",
    "flag.flex_attn_block_m", "flag.flex_attn_block_n", "flag.mm_encoder_attn_dtype",
    "flex.spare_m", "flex.spare_n", "attn.backend", "attn.sparse_block",
    "attn.heads", "attn.kv_heads", "attn.group", "attn.head_dim", "attn.topk_blocks", "attn.mla",
    "attn.padded_heads", "attn.window",
    "attn.alibi", "attn.alibi_sqrt", "attn.lookback",
    "attn.lookback_said",
    "attn.gqa", "attn.sparse", "attn.dense", "attn.sinks", "attn.mm_prefix",
    "attn.sliding_window", "attn.softcap", "attn.rswa", "attn.encoder_only", "attn.type",
    "attn.non_causal", "attn.block_size", "attn.block_given", "attn.cache_block",
    "mla.qk_nope_head_dim", "mla.qk_rope_head_dim", "mla.v_head_dim", "mla.kv_lora_rank",
    "mla.index_topk", "mla.dimensions", "mla.dimensions_text", "mla.nope_with_rope",
    "kv.dtype", "kv.quantized", "kv.is_fp8", "kv.is_nvfp4", "kv.fp8_or_auto",
    "kv.per_head_scales", "kv.run_dtype", "kv.run_quantized", "kv.configured_fp8",
    "flash.head", "flash.shape", "flash.paged", "flash.two_sizes", "flash.page_fits",
    "flash.version", "flash.any_head_version", "flash.two_size_version", "flash.page_version",
    "flash.fp8_kv", "flash.built_fp8_kv", "flash.any_head_fp8_kv",
}
"""Facts of attention besides lib.* and env.*: dispatch/vllm/attention_facts.py,
flash_attention.py, attention_args.py and kv_cache.py."""

LAWS = (attention_orders_end, attention_names_are_known, attention_words_have_places,
        conditions_are_facts)
