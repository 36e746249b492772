"""MXFP4 experts: Mxfp4MoEMethod and GptOssMxfp4MoEMethod
(model_executor/layers/quantization/mxfp4.py)."""

from __future__ import annotations

from quantplan.dispatch.vllm.experts.plan import Plan

MXFP4 = Plan("Mxfp4MoEMethod", "mxfp4_fp8_activations", "kMxfp4Static")
GPT_OSS = Plan("GptOssMxfp4MoEMethod", "mxfp4", "kMxfp4Static")


def fixed_mxfp4(method: str, walked: tuple[str, ...], flag: str) -> Plan:
    """Return the plan of methods that choose between two classes by themselves, and walk the list
    for some --moe-backend values (`walked`, by their beginnings)."""
    return Plan(method, "mxfp4" if flag.startswith(walked) else "mxfp4_fixed", "kMxfp4Static")
