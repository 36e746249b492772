"""Which version of FlashAttention a layer gets, and whether it reads the KV cache
(v1/attention/backends/fa_utils.py:get_flash_attn_version, flash_attn_supports_kv_cache_dtype)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import applies, holds

Facts = Mapping[str, Any]
Row = Mapping[str, Any]
E5M2 = "fp8_e5m2"


def flash_facts(flash: Row, facts: Facts, head: int, value_head: int) -> dict[str, Any]:
    """Return flash.*: the versions that the engine finds when it asks for this head size, for both
    head sizes, without one, and without a block size; and which caches they read. 0: none runs.
    Selection does not tell of ALiBi; flash.built_fp8_kv is what the constructor finds."""
    block = facts["attn.block_size"]
    fits = block is None or block % flash["page"] == 0
    built = {**facts, **_shape(head, head), "flash.paged": True, "flash.page_fits": fits}
    here = {**built, "attn.alibi": False}
    whole = {**here, **_shape(head, value_head), "flash.paged": False, "flash.page_fits": True}
    bare = {**whole, "flash.head": None, "flash.shape": "", "flash.two_sizes": False}
    page = {**here, "flash.page_fits": True, "attn.sinks": False}
    version, any_head = flash_version(flash, here), flash_version(flash, bare)
    return {
        "flash.head": head, "flash.shape": here["flash.shape"],
        "flash.version": version, "flash.any_head_version": any_head,
        "flash.two_size_version": flash_version(flash, whole),
        "flash.page_version": flash_version(flash, page),
        "flash.fp8_kv": _reads_fp8(flash, version, here),
        "flash.built_fp8_kv": _reads_fp8(flash, flash_version(flash, built), built),
        "flash.any_head_fp8_kv": _reads_fp8(flash, any_head, bare),
    }


def _shape(head: int, value_head: int) -> dict[str, Any]:
    return {"flash.head": head, "flash.shape": f"{head}/{value_head}",
            "flash.two_sizes": head != value_head}


def flash_version(flash: Row, facts: Facts) -> int:
    """Return the version for one set of facts, 0 where the device runs none of it."""
    forced: int | None = facts["flag.flash_attn_version"]
    version: int = forced or next(
        row["version"] for row in flash["first"] if applies(row.get("when"), facts))
    for row in flash["rewrites"]:
        if version in row["from"] and holds(row, facts):
            version = row["to"]
    return version if runs(flash, version, facts) else 0


def runs(flash: Row, version: int, facts: Facts) -> bool:
    """Return whether the wheel's FlashAttention of this version runs on the device."""
    return any(row["version"] == version and holds(row, facts) for row in flash["supported"])


def _reads_fp8(flash: Row, version: int, facts: Facts) -> bool:
    return facts["kv.dtype"] != E5M2 and any(
        row["version"] == version and applies(row.get("when"), facts) for row in flash["fp8_kv"])
