"""Where a module stands in the model, as one rank builds it, and whether the ranks can share it."""

from __future__ import annotations

from quantplan.dispatch.shard import in_blocks, on_ranks, shard
from quantplan.dispatch.structure import Module
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Context, Site
from quantplan.dispatch.vllm.experts.mega import splits_tokens
from quantplan.dispatch.vllm.serving import Serving

ONE_COLUMN = "ColumnParallelLinear"
"""Classes of several outputs assert all of them at once, without words."""


def site_at(context: Context, serving: Serving, module: Module, index: int | None) -> Site:
    """Return the module as the ranks build it, with its shard."""
    tp, spread = context.deployment.tp, splits_tokens(context)
    whole = serving.config_class in module.replicated_under or (
        spread and module.sequence_parallel)
    built = on_ranks(module, tp)
    if serving.block and built.whole_blocks and not whole:
        built = in_blocks(built, serving.block[0], tp)
    return Site(module.known_at(index, serving.config_class), index, built,
                shard(built, 1 if whole else tp))


def check_division(context: Context, site: Site) -> None:
    """Refuse a layer that the ranks cannot share."""
    if not site.shard.divides:
        raise refuse("shapes under TP", "AssertionError", _undivided(context, site),
                     site.module_path,
                     "model_executor/layers/linear.py",
                     hint="Choose a tensor parallel size that divides this layer.")


def _undivided(context: Context, site: Site) -> str:
    """Return what distributed/utils.py:ensure_divisibility says, nothing where a class asserts
    first."""
    module, tp = site.module, context.deployment.tp
    if module.heads is not None and context.structure.kv_heads_said:
        more, less = sorted((module.heads.kv, tp), reverse=True)
        return f"{more} is not divisible by {less}"
    if module.split in ("row", "vocab") or module.module == ONE_COLUMN:
        whole = site.shard.k_full if module.split == "row" else site.shard.n_full
        return f"{whole} is not divisible by {tp}"
    return ""
