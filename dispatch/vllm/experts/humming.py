"""Experts of --quantization humming, and those that AutoRound hands to it
(model_executor/layers/quantization/humming.py:HummingMoEMethod)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from quantplan.dispatch.humming_numbers import Input
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm import humming
from quantplan.dispatch.vllm.experts.plan import NO_KEY, Experts, Plan, unquantized
from quantplan.dispatch.vllm.humming_activation import Asked, eight_bits, runtime
from quantplan.dispatch.vllm.humming_inputs import check_tensors
from quantplan.dispatch.vllm.humming_keys import (
    any_integer,
    input_key,
    no_input_schema,
    weight_key,
)
from quantplan.dispatch.vllm.humming_layer import Made, Schemas, build, computed, refusing

METHOD = "HummingMoEMethod"
SOURCE = "model_executor/layers/quantization/humming.py:HummingMoEMethod"


def plan(fields: humming.Config, experts: Experts) -> Plan:
    """Return the plan of experts under --quantization humming."""
    schemas = humming.schemas_of(fields, experts.context, experts.site)
    if schemas is None:
        return unquantized("skipped, or in no group for Linear")
    return _plan(build(experts.context, experts.site, schemas), experts)


def integer_plan(config: Mapping[str, Any], experts: Experts) -> Plan:
    """Return the plan of experts that are stored as a GPTQ or AWQ config says."""
    return _plan(build(experts.context, experts.site, Schemas(config)), experts)


def _plan(made: Made, experts: Experts) -> Plan:
    context, rules = experts.context, experts.context.table["humming"]
    stored, given = made.forced or made.stored, made.forced_given or made.given
    weight = refusing(lambda: weight_key(rules, stored, context.dtype), experts.site)
    asked = Asked(stored.weight, context.gpu.capability, context.dtype, rules)
    wanted = eight_bits(given.input if given else Input())
    found = runtime(asked, wanted, made.fallback)
    if found is None:
        raise refuse("layer assignment", "ValueError", no_input_schema(
            stored, wanted, asked, made.fallback),
            experts.prefix, SOURCE, hint="Drop VLLM_HUMMING_INPUT_QUANT_CONFIG, or add "
            '"allow_fallback": true to it.')
    act = refusing(lambda: input_key(rules, found), experts.site)
    texts = {text: key for key, text in context.table["quant_keys"].items()}
    return Plan(
        METHOD, "humming",
        texts.get(weight, "humming_integer" if any_integer(weight) else "humming_other"),
        NO_KEY if act is None else texts.get(act, "humming_activations"),
        {"quant.weight_given": weight, "quant.act_given": act},
        why=computed(stored.weight, found.dtype or context.dtype), after=partial(_check, made))


def _check(made: Made, experts: Experts, backend: str | None, name: str) -> None:
    facts, given = experts.facts, made.forced_given or made.given
    rows = facts["moe.shard"] * (2 if facts["moe.gated"] else 1)
    refusing(lambda: check_tensors(made.stored, given, rows, facts["moe.hidden"],
                                   (facts["moe.local_experts"],)), experts.site)
