"""How experts are chosen for a token, as RoutingMethodType names it
(model_executor/layers/fused_moe/router/router_factory.py:create_fused_moe_router)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def routing_method(facts: Mapping[str, Any], simulated: bool) -> str:
    """Return the routing method of an experts module's facts."""
    if simulated:
        return "Simulated"
    if "routing" in facts:
        return str(facts["routing"])
    grouped = facts.get("grouped") and not _degenerate(facts)
    biased = bool(facts.get("score_bias") or facts.get("hash_routing"))
    return _method(str(facts.get("scoring", "softmax")), bool(facts.get("renormalize", True)),
                   facts.get("groups") if grouped else None,
                   bool(facts.get("score_bias")) if grouped else biased)


def _degenerate(facts: Mapping[str, Any]) -> bool:
    """Return whether one group of experts is served as none (the router factory's rule)."""
    one = (facts.get("groups") or 0) <= 1 and (facts.get("topk_groups") or 0) <= 1
    biased = bool(facts.get("score_bias"))
    scaled = facts.get("routed_scaling", 1.0) == 1.0 or biased
    scoring, renormalize = str(facts.get("scoring", "softmax")), bool(facts.get("renormalize"))
    kept = _method(scoring, renormalize, facts.get("groups"), biased) == _method(
        scoring, renormalize, None, biased)
    return one and scaled and kept


def _method(scoring: str, renormalize: bool, groups: int | None, biased: bool) -> str:
    """model_executor/layers/fused_moe/config.py:get_routing_method_type."""
    if scoring == "sqrtsoftplus":
        return "DeepseekV4" if renormalize else "Unspecified"
    if biased:
        if scoring != "sigmoid" or not renormalize:
            return "Unspecified"
        return "DeepSeekV3" if (groups or 0) > 0 else "MiniMax2"
    if scoring == "sigmoid":
        return "SigmoidRenorm" if renormalize else "Sigmoid"
    if scoring != "softmax":
        return "Unspecified"
    return "RenormalizeNaive" if renormalize else "Default"
