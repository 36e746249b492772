"""The engine's own count of a model's experts."""

from __future__ import annotations

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Context


def check_experts(context: Context) -> None:
    """Refuse --enable-expert-parallel for a model in which the engine counts no experts."""
    if context.deployment.expert_parallel and not _experts(context):
        raise refuse("config fields", "ValidationError",
                     "Number of experts in the model must be greater than 0 when expert "
                     "parallelism is enabled.", None,
                     "config/model.py:ModelConfig._verify_with_expert_parallelism",
                     hint="Drop --enable-expert-parallel.")


def _experts(context: Context) -> int:
    """Return how many experts the engine counts, by the fields that it knows
    (model_arch_config_convertor.py:ModelArchConfigConvertorBase.get_num_experts)."""
    config = context.checkpoint.text_config
    known = context.table["expert_counts"]
    counts = [config[name] for name in known["fields"] if name in config]
    if not counts and context.structure.family not in known["unseen"]:
        return context.structure.sizes.get("experts", 0)
    first = counts[0] if counts else 0
    if isinstance(first, list):
        first = first[0]
    blocks = config.get("block_configs") or ()
    return int(first or max((block.get("n_routed_experts", 0) for block in blocks
                             if block.get("block_type") == "moe"), default=0))
