"""The same model in other formats: what its weights leave for the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment, MemoryFlags
from quantplan.dispatch.formats import what_if_formats
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.weight_format import WeightFormat, read_format
from quantplan.planner.kv_cache import KvCache, kv_cache
from quantplan.planner.kv_layers import resolved_kv_dtype
from quantplan.planner.loaded_weights import Loader, loaded_bytes
from quantplan.tables.errors import UsageError
from quantplan.tables.record import NamedTuple


class WhatIf(NamedTuple):
    """One format of the comparison; `problem` says why it has no figures."""

    format: str
    title: str
    weight_bytes: int = 0
    left_bytes: int = 0
    kv_bytes_per_token: int = 0
    kv_tokens: int = 0
    fits: bool = False
    problem: str | None = None


def what_if(
    structure: Structure, left_bytes: int, kv: KvCache, *, config: Mapping[str, Any],
    loader: Loader, max_model_len: int,
) -> tuple[WhatIf, ...]:
    """Return the same model in other formats, in 16 bits where the serving dtype has 32;
    `left_bytes` is what weights and KV cache share, `config` the language model's part of
    config.json. No kernel repacks these weights."""
    served = "bfloat16" if loader.dtype == "float32" else loader.dtype
    plain = loader._replace(dtype=served, trace=None, quantized=None)
    return tuple(_what_if(row, structure, left_bytes, kv, config=config, loader=plain,
                          max_model_len=max_model_len)
                 for row in what_if_formats())


def kv_without_scheme(
    own: KvCache, checkpoint: Checkpoint, structure: Structure, deployment: Deployment,
    flags: MemoryFlags, *, version: str, dtype: str,
) -> KvCache:
    """Return the KV cache of the model in another format: `own`, the checkpoint's, where it says
    nothing of the cache and is served in 16 bits, else one in blocks of the default size."""
    asked = deployment.kv_cache_dtype
    if dtype != "float32" and resolved_kv_dtype(checkpoint.served_config, asked) == asked:
        return own
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    return kv_cache(checkpoint._replace(config=config, side_files={}), structure, None, deployment,
                    flags, version=version, dtype="bfloat16" if dtype == "float32" else dtype)


def _what_if(
    row: Mapping[str, Any], structure: Structure, left_bytes: int, kv: KvCache, *,
    config: Mapping[str, Any], loader: Loader, max_model_len: int,
) -> WhatIf:
    weights: WeightFormat | None = read_format({"quantization_config": row.get("config")})
    try:
        weight_bytes = loaded_bytes(config, structure, weights, loader)
    except UsageError as error:
        return WhatIf(row["id"], row["title"], problem=error.what)
    left = left_bytes - weight_bytes
    return WhatIf(row["id"], row["title"], weight_bytes, left, kv.bytes_per_token,
                  kv.printed_tokens(max(0, left), max_model_len), kv.largest_context(left) > 0)
