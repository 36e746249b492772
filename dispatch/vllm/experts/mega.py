"""Kernels that compute experts and exchange tokens between ranks (config/kernel.py)."""

from __future__ import annotations

from quantplan.dispatch.predicates import fill
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Context, Site

SOURCE = "models/deepseek_v4/nvidia/model.py:DeepseekV4MoE"


def check_model(context: Context) -> None:
    """Refuse a --moe-backend that only other architectures have."""
    rules, flag = context.table["mega_moe"], context.deployment.moe_backend
    if flag in rules["only"] and not _owns(context):
        raise refuse("config fields", "ValidationError", fill(rules["refused"], {
            "flag": flag, "architectures": rules["architectures"],
            "model": [context.structure.architecture]}), None, rules["source"],
            hint="Drop --moe-backend.")


def native(context: Context) -> bool:
    """Return whether the model builds a module of its own in the place of routed experts."""
    asked = context.deployment.moe_backend in context.table["mega_moe"]["native"]
    return asked and _owns(context)


def _owns(context: Context) -> bool:
    return context.structure.architecture in context.table["mega_moe"]["architectures"]


def splits_tokens(context: Context) -> bool:
    """Return whether ranks of tensor parallelism split tokens, not weights, around the experts."""
    deployment, rules = context.deployment, context.table["mega_moe"]
    mega = deployment.moe_backend in (*rules["native"], *rules["passthrough"]) and (
        _owns(context) and deployment.expert_parallel and deployment.tp > 1)
    return context.structure.sequence_parallel and (
        mega or deployment.sequence_parallel_experts)


def check_native(context: Context, site: Site) -> None:
    """Refuse a native kernel for what DeepSeek V4 does not build it for."""
    if not native(context):
        return
    config, deployment = context.checkpoint.text_config, context.deployment
    dtype = config.get("expert_dtype", "fp4")
    words = None
    if not deployment.expert_parallel:
        words = ("DeepSeek V4 MegaMoE currently requires expert parallel. Enable it with "
                 "--enable-expert-parallel, or pick a different moe backend.")
    elif config.get("scoring_func", "sqrtsoftplus") != "sqrtsoftplus":
        words = "DeepSeek V4 MegaMoE currently supports sqrtsoftplus routing only."
    elif not config.get("norm_topk_prob", True):
        words = "DeepSeek V4 MegaMoE requires normalized top-k probabilities."
    elif dtype != "fp4":
        words = (f"DeepSeek V4 MegaMoE only supports fp4 experts; got expert_dtype={dtype!r}. Drop "
                 f"--kernel-config moe_backend={deployment.moe_backend} for this checkpoint.")
    if words:
        raise refuse("layer assignment", "NotImplementedError", words, None, SOURCE,
                     hint="Drop --moe-backend.")
