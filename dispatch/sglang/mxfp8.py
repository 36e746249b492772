"""MXFP8 checkpoints and MXFP8 made while loading: Fp8Config with use_mxfp8
(layers/quantization/fp8.py)."""

from __future__ import annotations

from quantplan.dispatch.sglang import fp8
from quantplan.dispatch.sglang.context import BLACKWELL, Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.expert_formats import MXFP4
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config
from quantplan.dispatch.sglang.fp8 import Fp8Fields, kv_algo
from quantplan.dispatch.sglang.ignore import is_skipped
from quantplan.dispatch.sglang.operators import chosen
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SCALES = "layers/quantization/fp8.py:Fp8LinearMethod._process_mxfp8_linear_weight_scale"
BLOCK = (1, 32)
"""The block of every MXFP8 weight; a checkpoint's own is not read."""
LOADED = "layers/quantization/fp8.py:Fp8MoEMethod"


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
    return linear(context, site)


def linear(context: Context, site: Site) -> Assignment:
    """Return the assignment of a layer that has Fp8LinearMethod with MXFP8, or refuse as that
    does."""
    fp8.check_mxfp8_backend(context, site)
    fp8.check_block(BLOCK, context, site, site.shard.parts)
    n, k = site.shard.n, site.shard.k
    tiles = n % 64 == 0 and k % 128 == 0
    refusal: Exception | None = None if tiles or not _on_deep_gemm_alone(context) else refuse(
        "weight loading", "RuntimeError", "--fp8-gemm-backend=deep_gemm cannot serve MXFP8 weight "
        f"shape ({n}, {k}) (needs N % 64 == 0 and K % 128 == 0), and this device has no FlashInfer "
        "MXFP8 fallback kernel.", site.path, SCALES, hint="Choose another tensor parallel size.")
    facts = {"mxfp8.deep_gemm_tiles": tiles}
    if chosen(context, "mxfp8", {**site.facts, **facts}).text("kernel") == fp8.MARLIN:
        refusal = fp8.unfit_block(BLOCK, site)
    return Assignment("Fp8LinearMethod", None, "mxfp8", facts, refusal=refusal)


def _on_deep_gemm_alone(context: Context) -> bool:
    """Return whether DeepGEMM serves MXFP8 on a GPU that has no other kernel for it."""
    facts = context.facts
    return bool(90 <= context.gpu.capability < BLACKWELL and facts["lib.deep_gemm"]
                and facts["env.SGLANG_ENABLE_JIT_DEEPGEMM"])


def experts(fields: Fp8Fields, context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of routed experts, or refuse as Fp8MoEMethod does."""
    if is_skipped(context, site.path, fields.ignored):
        return unquantized_experts("named in the layers that Fp8Config leaves alone", "trtllm")
    fp8.check_experts_block(BLOCK, held, site)
    if context.facts["experts.format"] == MXFP4:
        raise NotKnownError("packed MXFP4 experts under mxfp8",
                            hint="The engine fails after it loaded such weights.")
    refusal = None if context.facts["gpu.family"] == BLACKWELL else refuse(
        "weight loading", "RuntimeError", "MXFP8 MoE quantization requires SM100 or ROCm gfx95 "
        "(gfx942 converts MXFP8 to block-fp8 at load instead).", site.path, LOADED,
        hint="SGLang serves MXFP8 experts on 10.0 and 10.3 only.")
    return Assignment("Fp8MoEMethod", operators="experts_mxfp8", refusal=refusal)


__all__ = ["assign", "experts", "kv_algo", "read"]
