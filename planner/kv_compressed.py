"""The caches of DeepSeek-V4: latents of several tokens in a row, and windows of what is not yet
compressed, in blocks that their classes name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.structure import Module
from quantplan.planner.kv_spec import FULL, WINDOW, Spec
from quantplan.tables.errors import NotKnownError

Row = Mapping[str, Any]
PACKED = "fp8_ds_mla"
PACKED_BYTES = 584
"""Of a token: 448 in FP8, 64 in 16 bits, 8 scales (models/deepseek_v4/attention.py)."""
PACKED_ALIGNMENT_BYTES = 576
BLOCK_TOKENS = 256
"""All that its kernels take (models/deepseek_v4/sparse_mla.py)."""
WINDOW_BLOCK_TOKENS = 64
STATE_BLOCKS = {4: 4, 128: 8}
"""Tokens of a block by how many tokens a row compresses
(models/deepseek_v4/compressor.py:CompressorStateCache)."""


def compressed_spec(
    module: Module, layer: int, row: Row, config: Mapping[str, Any], dtype: str
) -> Spec:
    """Return the cache of one module of DeepSeek-V4 in `layer`.

    Raises NotKnownError for another cache dtype than fp8_ds_mla and for a config without the
    compression of its layers.
    """
    if dtype != PACKED:
        raise NotKnownError(f"DeepSeek-V4's caches in {dtype}", wanted=PACKED)
    holds, tokens = row["holds"], _ratio(config, layer)
    made = Spec(FULL, BLOCK_TOKENS, 0, (holds,), latent=True,
                alignment_bytes=PACKED_ALIGNMENT_BYTES)
    dim = module.facts["head_dim"]
    if holds == "compressed":
        return made._replace(row_bytes=PACKED_BYTES, tokens_per_row=tokens)
    if holds == "compressed_keys":
        return made._replace(row_bytes=dim + dim // row["scale_group"] * 4, tokens_per_row=tokens)
    if holds == "compressed_window":
        return made._replace(kind=WINDOW, block_tokens=WINDOW_BLOCK_TOKENS, row_bytes=PACKED_BYTES,
                             span_tokens=module.facts["window"])
    # A row of four tokens overlaps with the one before it.
    overlap = 2 if tokens == min(STATE_BLOCKS) else 1
    return made._replace(kind=WINDOW, block_tokens=STATE_BLOCKS[tokens],
                         span_tokens=overlap * tokens, row_bytes=2 * overlap * dim * 4)


def _ratio(config: Mapping[str, Any], layer: int) -> int:
    """Return how many tokens a row of a layer compresses, 1 where it keeps a window alone."""
    listed = config.get("compress_ratios")
    if not isinstance(listed, list) or layer >= len(listed):
        raise NotKnownError("how DeepSeek-V4's layers compress", wanted="compress_ratios in "
                            "config.json")
    found = max(1, int(listed[layer]))
    if found not in {1, *STATE_BLOCKS}:
        raise NotKnownError(f"a cache that compresses {found} tokens into a row")
    return found
