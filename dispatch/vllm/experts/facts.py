"""The facts of routed experts: what FusedMoEConfig and FusedMoEParallelConfig hold
(model_executor/layers/fused_moe/config.py), as moe.*."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.environment import readable
from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Context, Site, trait
from quantplan.dispatch.vllm.experts.mega import splits_tokens
from quantplan.dispatch.vllm.experts.plan import Experts
from quantplan.dispatch.vllm.experts.routing import routing_method

CONFIG_SOURCE = "model_executor/layers/fused_moe/config.py:FusedMoEConfig"
PARALLEL_SOURCE = "model_executor/layers/fused_moe/config.py:FusedMoEParallelConfig.make"
NO_GATE = "_no_mul"
ALIGNED_EXPERTS = 32
"""Experts are padded to whole warps (experts/triton_moe.py:TritonExperts.is_supported_config)."""
SITU = (4.0, 25.0)
"""The SiTU parameters that B12x takes (fused_moe/b12x.py:
B12xExperts.is_supported_config)."""


def experts_of(context: Context, site: Site) -> Experts:
    """Return the routed experts at `site`; refuses where the intermediate size does not divide."""
    given = site.module.facts
    parallel = parallel_facts(context)
    given = {**given, "intermediate": _padded(given, context.deployment)}
    if given["intermediate"] % parallel["moe.tp"]:
        raise refuse("shapes under TP", "AssertionError", "", site.path,
                     CONFIG_SOURCE, hint=f"The experts' intermediate size {given['intermediate']} "
                     f"is not a multiple of {parallel['moe.tp']}; choose another tensor parallel "
                     "size, or --enable-expert-parallel.")
    return Experts(context, site, {
        **_sizes(given, parallel), **parallel, **_activation(given), **_swiglu(given),
        **_routing(context, site),
        "moe.humming_gemm": _humming_gemm(context, site, parallel["moe.use_ep"]),
    })


def _padded(given: Any, deployment: Deployment) -> int:
    """Return the experts' intermediate size; Kimi's class pads it so that every rank holds at least
    `least_shard` of its features (models/kimi_k3/nvidia/model.py:KimiMoE)."""
    whole, least, tp = given["intermediate"], given.get("least_shard", 0), deployment.tp
    split = tp > 1 and not deployment.expert_parallel
    return int(least * tp if split and whole // tp < least else whole)


def parallel_facts(context: Context) -> dict[str, Any]:
    """Return the parallel sizes of experts: with expert parallelism every rank holds whole experts,
    otherwise every expert is split across all ranks (PARALLEL_SOURCE)."""
    deployment, sequence = context.deployment, splits_tokens(context)
    ranks = deployment.tp * deployment.dp
    use_ep = deployment.expert_parallel and ranks > 1
    silent = deployment.moe_backend in context.table["mega_moe"]["passthrough"]
    name = "passthrough" if silent else "allgather_reducescatter"
    return {
        "moe.use_ep": use_ep, "moe.tp": 1 if use_ep else ranks, "moe.ep": ranks if use_ep else 1,
        "moe.dp": deployment.dp, "moe.data_parallel": deployment.dp > 1,
        "moe.sp": deployment.tp if sequence else 1, "moe.sequence_parallel": sequence,
        "moe.all2all": name if use_ep and deployment.dp > 1 else "none", "moe.all2all_name": name,
        "moe.format": "standard",
    }


def _sizes(given: Any, parallel: dict[str, Any]) -> dict[str, Any]:
    count = given["experts"]
    return {
        "moe.experts": count, "moe.hidden": given["hidden"],
        "moe.padded_experts": -(-count // ALIGNED_EXPERTS) * ALIGNED_EXPERTS,
        "moe.local_experts": -(-count // parallel["moe.ep"]),
        "moe.intermediate": given["intermediate"],
        "moe.shard": given["intermediate"] // parallel["moe.tp"],
        "moe.bias": bool(given.get("bias")),
    }


def _activation(given: Any) -> dict[str, Any]:
    """Return the activation as MoEActivation spells it; without a gate its name ends in _no_mul."""
    name = ALIASES.get(given["activation"], given["activation"])
    if not given.get("gated", True) and not name.endswith(NO_GATE):
        name += NO_GATE
    return {"moe.activation": name, "moe.activation_member": name.upper(),
            "moe.gated": not name.endswith(NO_GATE)}


ALIASES = {"gelu_pytorch_tanh": "gelu_tanh"}
"""model_executor/layers/fused_moe/activation.py:MoEActivation.from_str."""


def _swiglu(given: Any) -> dict[str, Any]:
    limit = given.get("swiglu_limit")
    custom = (limit, given.get("swiglu_alpha"), given.get("swiglu_beta"))
    return {"moe.swiglu_limit": limit, "moe.clamped": limit is not None,
            "moe.swiglu_custom": any(value is not None for value in custom),
            "moe.swiglu_shaped": any(value is not None for value in custom[1:]),
            "moe.situ_standard": (given.get("situ_beta"), given.get("situ_linear_beta")) == SITU}


def _routing(context: Context, site: Site) -> dict[str, Any]:
    given = site.module.facts
    strategy = readable("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", context.facts)
    rules = trait(context.table, "simulated_routing")
    if strategy and rules:
        _check_strategy(str(strategy), rules, site)
    name = routing_method(given, bool(strategy) and not rules)
    return {"moe.routing": name, "moe.routing_number": context.table["routing_methods"][name],
            "moe.hash_routing": bool(given.get("hash_routing")),
            "moe.decomposed": bool(strategy and rules and strategy not in rules["monolithic"]),
            "moe.router_dtype": given.get("router_dtype") or context.dtype}


def _check_strategy(strategy: str, rules: dict[str, list[str]], site: Site) -> None:
    known = rules["strategies"]
    if strategy not in known:
        raise refuse("layer assignment", "ValueError",
                     f"Unknown routing strategy: {strategy}. Available strategies: {known}",
                     site.module_path, "envs.py:VLLM_MOE_ROUTING_SIMULATION_STRATEGY",
                     hint="Unset the variable: simulated routing is for performance tests.")


def _humming_gemm(context: Context, site: Site, use_ep: bool) -> str:
    """experts/fused_humming_moe.py:get_humming_moe_gemm_type."""
    asked = readable("VLLM_HUMMING_MOE_GEMM_TYPE", context.facts)
    if asked is not None and asked.lower() != "auto":
        return "grouped_contiguous" if asked.lower() == "grouped" else str(asked.lower())
    return "grouped_contiguous" if use_ep else "indexed"
