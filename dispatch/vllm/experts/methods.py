"""Which plan serves routed experts under a config class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.vllm.experts import (
    compressed_tensors,
    few,
    fp8,
    humming,
    inc,
    integers,
    modelopt,
    online,
    quark,
)
from quantplan.dispatch.vllm.experts.mxfp4 import GPT_OSS, MXFP4
from quantplan.dispatch.vllm.experts.plan import Experts, Plan
from quantplan.tables.errors import NotKnownError

PLANS: Mapping[str, Callable[[Any, Experts], Plan]] = {
    "fp8": fp8.plan, "awq": integers.awq_plan, "gptq": integers.gptq_plan,
    "moe_wna16": integers.wna16_plan, "compressed_tensors": compressed_tensors.plan,
    "modelopt": modelopt.plan, "quark": quark.plan, "humming": humming.plan,
    "inc": inc.plan, "fbgemm": few.unserved, "torchao": few.unserved, "fp_quant": few.fp_quant,
    "deepseek_v4": few.deepseek,
}
"""Config class row `resolves` -> what plans its experts, from the fields that it read."""

FIXED: Mapping[str, Plan] = {
    "ExpertsInt8Config": online.int8_plan(), "Mxfp4Config": MXFP4, "GptOssMxfp4Config": GPT_OSS,
}
"""Config classes that plan all experts alike."""


def experts_plan(resolves: str, config_class: str, fields: Any, experts: Experts) -> Plan:
    """Return the plan of experts; NotKnownError for a config class whose experts have no rules."""
    if config_class in FIXED:
        return FIXED[config_class]
    if resolves not in PLANS:
        raise NotKnownError(f"{experts.prefix}: experts under {config_class}",
                            hint="Their rules are not in this version's table yet.")
    return PLANS[resolves](fields, experts)
