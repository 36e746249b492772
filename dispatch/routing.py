"""How routed experts are chosen for a token, as vLLM names it for the experts' kernels
(model_executor/layers/fused_moe/config.py:get_routing_method_type)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def routing_method(facts: Mapping[str, Any]) -> str:
    """Return the RoutingMethodType of experts with these facts: `scoring`, `renormalize`,
    `groups` (of a grouped top-k), `score_bias` (a correction bias, or a hash table) and DeepSeek's
    `topk_method`, which says the same."""
    scoring, renormalize = facts.get("scoring", "softmax"), bool(facts.get("renormalize", True))
    if scoring == "sqrtsoftplus":
        return "DeepseekV4" if renormalize else UNSPECIFIED
    if facts.get("score_bias") or facts.get("topk_method") == "noaux_tc":
        return _biased(scoring, renormalize, facts.get("groups") or 0)
    return UNBIASED.get((scoring, renormalize), UNSPECIFIED)


def _biased(scoring: Any, renormalize: bool, groups: int) -> str:
    if scoring != "sigmoid" or not renormalize:
        return UNSPECIFIED
    return "DeepSeekV3" if groups > 0 else "MiniMax2"


UNSPECIFIED = "Unspecified"
UNBIASED = {
    ("sigmoid", True): "SigmoidRenorm", ("sigmoid", False): "Sigmoid",
    ("softmax", True): "RenormalizeNaive", ("softmax", False): "Default",
}
"""Scoring function and renormalization -> method, without a correction bias."""
