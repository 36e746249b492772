"""KV cache bytes per token of one tensor-parallel rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Note
from quantplan.dispatch.shard import heads_divide, kv_heads_per_rank
from quantplan.dispatch.structure import TEXT, Structure
from quantplan.dispatch.weight_format import Config, quantization_config
from quantplan.planner.cuts import uneven
from quantplan.planner.lines import EXACT, BudgetLine
from quantplan.planner.parts import dtype_bits
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import NotKnownError
from quantplan.tables.load import read_table

BLOCK_TOKENS = 16
"""vLLM 0.32.0 config/cache.py:CacheConfig.DEFAULT_BLOCK_SIZE; some backends take larger ones."""


def kv_line(
    config: Config, structure: Structure, *, tp: int = 1, dtype: str = "bfloat16",
    kv_cache_dtype: str = "auto",
) -> BudgetLine:
    """Return the bytes that one token takes in the KV cache of one rank.

    2 (K and V)
    * layers
    * kv_heads of one rank (one replicated head when there are fewer heads than ranks)
    * head_dim
    * bytes of one element (auto: the serving dtype, or FP8 where `config` has a KV scheme)
    -> bytes per token per rank

    `config` is the checkpoint's config.json. Raises NotKnownError for a KV cache dtype without a
    row and for layers that do not all keep keys and values of one size, UsageError for heads that
    do not divide over the ranks.
    """
    sizes = structure.sizes
    _check_alike(structure)
    if not heads_divide(sizes["num_attention_heads"], sizes["num_key_value_heads"], tp):
        raise uneven("attention", tp, f"{sizes['num_attention_heads']} query and "
                     f"{sizes['num_key_value_heads']} KV heads")
    name = resolved_kv_dtype(config, kv_cache_dtype)
    row = _row(name)
    item_bytes = dtype_bits(row["dtype"], dtype) // 8
    heads = kv_heads_per_rank(sizes["num_key_value_heads"], tp)
    layers, head_dim = structure.num_layers, sizes["head_dim"]
    formula = (f"2 (K and V) x {layers} layers x {heads} KV heads x {head_dim} head_dim x "
               f"{item_bytes} {'byte' if item_bytes == 1 else 'bytes'} "
               f"({dtype if row['dtype'] == 'model' else name})")
    return BudgetLine("KV cache per token", 2 * layers * heads * head_dim * item_bytes, formula,
                      row["source"], EXACT)


def _check_alike(structure: Structure) -> None:
    """Refuse a model whose layers keep something else, or keys and values of several sizes."""
    text = [module for module in structure.modules if module.stack == TEXT]
    other = next((module for module in text if module.kind in ("mla", "part")), None)
    attention = [module for module in text if module.kind == "attention"]
    kept = {(m.facts.get("kv_heads"), m.facts.get("head_dim"), m.facts.get("v_head_dim"))
            for m in attention}
    layers = sum(len(module.layers) for module in attention)
    if other is not None or len(kept) != 1 or layers != structure.num_layers:
        raise NotKnownError(f"the KV cache of {other.module if other else structure.architecture}",
                            wanted="layers that all keep keys and values of one size")


def resolved_kv_dtype(config: Config, requested: str) -> str:
    """Return the requested KV cache dtype, or what the checkpoint's KV scheme makes of auto."""
    from quantplan.dispatch.vllm.kv_cache import kv_dtype
    from quantplan.dispatch.vllm.modelopt_config import kv_cache_dtype

    section = quantization_config(config) or {}
    method = _method(section)
    scheme = section.get("kv_cache_scheme") if method == "compressed-tensors" else None
    own = kv_cache_dtype(load_engine("vllm"), section, method)
    return kv_dtype(requested, scheme, own)


def _method(section: Config) -> str:
    """Return the quant_method of a config, "" where the engine refuses to name one."""
    from quantplan.dispatch.trace import Refusal
    from quantplan.dispatch.vllm.quant_config import producer_method

    try:
        named = producer_method(load_engine("vllm"), section)
    except Refusal:
        return ""
    return named or str(section.get("quant_method", ""))


def _row(name: str) -> Mapping[str, Any]:
    rows = read_table("formats/formats")["kv_cache_dtypes"]
    found: Mapping[str, Any] | None = next((row for row in rows if row["id"] == name), None)
    if found is None:
        raise NotKnownError(f"bytes per token of the KV cache dtype {name!r}",
                            wanted="one of " + ", ".join(row["id"] for row in rows),
                            hint="Its layout has no row in tables/formats yet.")
    return found


def kv_notes(config: Config) -> Iterator[Note]:
    """Yield what the figure leaves out: a sliding window is counted as full attention."""
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window") is not False:
        yield Note("sliding-window-not-modelled", f"sliding_window is {window}: the window is not "
                   "modelled, every layer is counted as full attention",
                   "The engine may hold more tokens than this.")
