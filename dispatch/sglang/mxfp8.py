"""MXFP8 checkpoints and MXFP8 made while loading: Fp8Config with use_mxfp8
(layers/quantization/fp8.py)."""

from __future__ import annotations

from quantplan.dispatch.sglang import fp8
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.fields import Config
from quantplan.dispatch.sglang.fp8 import Fp8Fields, kv_algo
from quantplan.dispatch.sglang.ignore import is_skipped

BLOCK = (1, 32)
"""The block of every MXFP8 weight; a checkpoint's own is not read."""


def read(config: Config | None, context: Context) -> Fp8Fields:
    """Return the fields, or refuse as Fp8Config does. The class reads no hf_quant_config.json: a
    checkpoint that has no other is quantized while it loads."""
    own = context.checkpoint.config
    if all(own.get(key) is None for key in ("quantization_config", "compression_config")):
        config = None
    if config is not None:
        config = {**config, "weight_block_size": [*BLOCK]}
    return fp8.read(config, context)._replace(block=BLOCK)


def assign(fields: Fp8Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; embeddings and lm_head are none of Fp8Config's."""
    if site.module.split == "vocab":
        return None
    if is_skipped(context, site.path, fields.ignored):
        return unquantized("named in the layers that Fp8Config leaves alone")
    fp8.check_mxfp8_backend(context, site)
    fp8.check_block(BLOCK, context, site, site.shard.parts)
    tiles = site.shard.n % 64 == 0 and site.shard.k % 128 == 0
    return Assignment("Fp8LinearMethod", None, "mxfp8", {"mxfp8.deep_gemm_tiles": tiles})


__all__ = ["assign", "kv_algo", "read"]
