"""What would let a backend take a layer that none takes here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.trace import Selection
from quantplan.dispatch.vllm.attention_backends import select
from quantplan.dispatch.vllm.context import Context, capability_facts


def remedy(context: Context, name: str, facts: Mapping[str, Any], refused: Selection) -> str:
    """Return the flag to drop, or the lowest newer capability with machine code in the wheel at
    which a backend of list `name` takes the layer."""
    pinned = next((step for step in refused.steps if step.kind == "Pinned"), None)
    if pinned is not None:
        return f"Drop {pinned.because}: the engine then takes the first backend that can."
    if context.deployment.kv_cache_dtype != "auto":
        return f"Drop --kv-cache-dtype {context.deployment.kv_cache_dtype}."
    if context.deployment.block_size is not None:
        freed = {**facts, "attn.block_size": None, "attn.block_given": False,
                 "attn.cache_block": context.table["defaults"]["block_size"]}
        if select(context.table["attention"], name, freed).kernel:
            return f"Drop --block-size {context.deployment.block_size}."
    for capability in context.table["machine_code"]:
        if capability > context.gpu.capability:
            newer = {**facts, **capability_facts(capability)}
            chosen = select(context.table["attention"], name, newer).kernel
            if chosen:
                return f"Use a GPU of {capability / 10}, where {chosen} takes it."
    return "No flag and no newer GPU changes this; the JSON has each backend's checks."
