"""Where a module stands in the model, as one rank builds it."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Context, Site
from quantplan.dispatch.shard import VOCAB_PADDING, Shard, on_ranks, shard
from quantplan.dispatch.structure import Module
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SAYS_HEADS, PADS_HEADS = "says_heads", "pads_heads"
"""Rules of modules: the class divides its heads as sizes are, in words, or adds some until they
divide (layers/attention/vision.py:VisionAttention)."""
SAYS_KV_HEADS = "says_kv_heads"
"""The same of its key and value heads, which QKVParallelLinear divides
(models/dbrx.py:DbrxAttention)."""
WHOLE_HEADS, WHOLE_SIZE = "whole_heads", "whole_head_size"
DEEP_GEMM, DEEP_GEMM_CLASS = "deep_gemm", "deep_gemm_class"
"""Rules of modules whose class asserts that ranks divide its heads, or heads hidden_size, before
anything is built; that imports DeepGEMM, or stands in a file that does."""


def site_at(module: Module, index: int | None, tp: int) -> Site:
    """Return the module in layer `index` with rank 0's shard."""
    module = on_ranks(module, tp)
    cut = _vocab(module, tp) if module.split == "vocab" else shard(module, tp)
    return Site(module.path_at(index), index, module, cut)


def _vocab(module: Module, tp: int) -> Shard:
    """Return the shard of a vocabulary: padded to 64, or to 64 a rank where that does not divide
    (layers/vocab_parallel_embedding.py:VocabParallelEmbedding)."""
    leaf, piece = module.leaves[0], VOCAB_PADDING
    if -(-leaf.n // piece) * piece % tp:
        piece *= tp
    padded, k = -(-leaf.n // piece) * piece, leaf.k or 1
    return Shard(padded // tp, k, padded, k, (padded // tp,))


def _number_said(site: Site, tp: int) -> int | None:
    """Return the size that a refusal names, None where the class asserts without words."""
    module = site.module
    if module.split == "row":
        return site.shard.k_full
    if module.module == "ColumnParallelLinear":
        return site.shard.n_full
    heads = module.heads
    if heads is not None and SAYS_KV_HEADS in module.before and heads.query % tp == 0:
        return heads.kv
    return heads.query if heads is not None and SAYS_HEADS in module.before else None


def check_division(site: Site, tp: int) -> None:
    """Refuse what does not divide over the ranks. Classes assert their heads and all outputs of a
    merged layer without words; other layers say their size (distributed/utils.py:divide)."""
    if site.shard.divides:
        return
    if PADS_HEADS in site.module.before:
        raise NotKnownError(f"SGLang's {site.path} over {tp} ranks",
                            hint="The engine adds heads to the tower until ranks divide them.")
    number = _number_said(site, tp)
    text = "" if number is None else f"{number} is not divisible by {tp}"
    raise refuse("shapes under TP", "AssertionError", text, site.path, "layers/linear.py",
                 hint="Choose a tensor parallel size that divides this layer.")


def check_before(context: Context, site: Site) -> None:
    """Refuse what the class of a module refuses before it builds the module. Raises NotKnownError
    where the engine cannot import the class."""
    before, sizes = site.module.before, {**context.structure.sizes, **site.module.facts}
    heads = sizes.get("heads", sizes.get("num_attention_heads", 0))
    if WHOLE_SIZE in before and sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise refuse("layer assignment", "AssertionError", "", site.path,
                     "models/olmo2.py:Olmo2Attention",
                     hint=f"config.json: {heads} heads do not divide hidden_size.")
    if WHOLE_HEADS in before and heads % context.deployment.tp:
        raise refuse("shapes under TP", "AssertionError", "", site.path,
                     "models/deepseek_v2.py:DeepseekV2AttentionMLA",
                     hint=f"Choose a tensor parallel size that divides {heads} heads.")
    if context.facts["lib.deep_gemm"] is not False:
        return
    if DEEP_GEMM in before:
        raise refuse("layer assignment", "ModuleNotFoundError", "No module named 'deep_gemm'",
                     site.path, "layers/attention/dsa/utils.py:resolve_num_sms",
                     hint="Install sgl-deep-gemm: sparse attention needs it on every GPU.")
    if DEEP_GEMM_CLASS in before:
        raise NotKnownError(f"SGLang's {context.structure.architecture} without DeepGEMM",
                            hint="Its class is not imported then: install sgl-deep-gemm.")
