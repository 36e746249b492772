"""A 16-bit KV cache of another dtype than the model's, where a version refuses that at start-up."""

from __future__ import annotations

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Context, trait
from quantplan.dispatch.vllm.kv_cache import configured

TRAIT = "float_kv_is_the_models"
FLOATS = ("float16", "bfloat16")


def check_float_kv(context: Context) -> None:
    """Refuse --kv-cache-dtype float16 or bfloat16 for a model of another dtype, unless the model's
    class changes it."""
    table, dtype = context.table, context.dtype
    requested = configured(context, context.deployment.kv_cache_dtype)
    if not trait(table, TRAIT) or requested not in FLOATS or requested == dtype:
        return
    allowed = f"`auto` or `{dtype}`" if dtype in FLOATS else "`auto`"
    raise refuse(
        "flags", "ValidationError",
        f'kv_cache_dtype="{requested}" is incompatible with dtype="{dtype}". Please set '
        f"`--kv-cache-dtype` to {allowed}.", None, table["traits"][TRAIT]["source"],
        hint="Drop --kv-cache-dtype: auto is the model's dtype.")
