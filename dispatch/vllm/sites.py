"""Where a module stands in the model, as one rank builds it."""

from __future__ import annotations

from quantplan.dispatch.shard import in_blocks, on_ranks, shard
from quantplan.dispatch.structure import Module
from quantplan.dispatch.vllm.context import Context, Site
from quantplan.dispatch.vllm.experts.mega import splits_tokens
from quantplan.dispatch.vllm.serving import Serving


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
