"""The same model in other formats: what its weights leave for the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.formats import what_if_formats
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.weight_format import WeightFormat, read_format
from quantplan.planner.kv_full import FullKv
from quantplan.planner.weights import weigh_sizes
from quantplan.tables.errors import UsageError


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
    structure: Structure, left_bytes: int, kv_of: Callable[[Mapping[str, Any], str], FullKv], *,
    tp: int, dtype: str, max_model_len: int,
) -> tuple[WhatIf, ...]:
    """Return the same model in other formats, in 16 bits where the serving dtype has 32;
    `left_bytes` is what weights and KV cache share."""
    served = "bfloat16" if dtype == "float32" else dtype
    kv = kv_of({}, served)
    return tuple(_what_if(row, structure, left_bytes, kv, tp=tp, dtype=served,
                          max_model_len=max_model_len)
                 for row in what_if_formats())


def _what_if(
    row: Mapping[str, Any], structure: Structure, left_bytes: int, kv: FullKv, *, tp: int,
    dtype: str, max_model_len: int,
) -> WhatIf:
    weights: WeightFormat | None = read_format({"quantization_config": row.get("config")})
    try:
        lines = weigh_sizes(structure, weights, tp, dtype)
    except UsageError as error:
        return WhatIf(row["id"], row["title"], problem=error.what)
    weight_bytes = sum(line.bytes for line in lines)
    left = left_bytes - weight_bytes
    return WhatIf(row["id"], row["title"], weight_bytes, left, kv.bytes_per_token,
                  kv.printed_tokens(max(0, left), max_model_len), kv.largest_context(left) > 0)
