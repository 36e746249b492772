"""Experts of AMD Quark checkpoints (model_executor/layers/quantization/quark/quark_moe.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quantplan.dispatch.predicates import fill
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm import quark
from quantplan.dispatch.vllm.experts.fp8 import check_blocks
from quantplan.dispatch.vllm.experts.integers import check_halved, integer_facts
from quantplan.dispatch.vllm.experts.plan import NO_KEY, Experts, Plan, unquantized
from quantplan.dispatch.vllm.fp8 import block_facts
from quantplan.dispatch.vllm.quark_config import QuarkFields, rule_of
from quantplan.dispatch.vllm.quark_schemes import entries, facts_of, fits, two_steps

Facts = Mapping[str, Any]
SOURCE = "model_executor/layers/quantization/quark/quark_moe.py"
UNKNOWN = "unknown"


def plan(fields: QuarkFields, experts: Experts) -> Plan:
    """Return the plan of experts in a Quark checkpoint."""
    prefix, context = experts.prefix, experts.context
    children = tuple(name for name in fields.ignore or () if not name.startswith("re:"))
    if any(name == prefix or name.startswith(f"{prefix}.") for name in children) or (
            quark.is_excluded(fields, context, experts.site)):
        return unquantized("named in exclude, or one of its experts is")
    rule = rule_of(fields, context.structure.packed, prefix)
    facts = facts_of(rule, fields.pack_method, prefix)
    facts.update(_mx_facts(facts), layer=prefix)
    keys = context.table["quark_mx_keys"]
    facts["weight.config"] = next(iter(entries(rule, "weight")), None)
    facts["input.key"] = context.table["quant_keys"][keys[facts["input.mx"]]]
    row = _row(experts, facts)
    if "raises" in row:
        raise refuse("layer assignment", row["raises"]["type"],
                     fill(row["raises"]["message"], facts), prefix, f"{SOURCE}:{row['method']}",
                     hint="No experts of this version read this combination.")
    made = Plan(row["method"], row["list"], row.get("weight", NO_KEY), row.get("act", NO_KEY),
                {"quant.vllm_cutlass": False}, first_class=bool(row.get("first_class")),
                why=row.get("weight_only"), weight_only="weight_only" in row)
    return REFINED[row["id"]](made, facts, experts) if row["id"] in REFINED else made


def _row(experts: Experts, facts: Facts) -> Mapping[str, Any]:
    table, several = experts.context.table, two_steps(facts)
    rows: Iterable[Mapping[str, Any]] = table["quark_experts"].values()
    for row in rows:
        if bool(row.get("two_steps")) == several and (
                "scheme" not in row or fits(table["quark_schemes"][row["scheme"]], facts)) and (
                "when" not in row or fits(row, facts)):
            return row
    raise refuse("layer assignment", "RuntimeError", "Unsupported FusedMoe scheme", experts.prefix,
                 f"{SOURCE}:QuarkMoEMethod.get_moe_method_target",
                 hint="No experts of this version read this combination.")


def _mx_facts(facts: Facts) -> Facts:
    """Return the MX formats of weights and activations by the engine's names; weight.mx_any is None
    where activations go with no MX weights, weight.mx_static where they have no static FP8 scale.
    """
    weight = str(facts["weight.dtype"]).replace("fp", "mxfp")
    name = str(facts["input.dtype"]).replace("fp", "mxfp")
    grouped = facts["input.qscheme"] == "per_group" and facts["input.group_size"] == quark.MX_GROUP
    given = name if name in quark.MX_ACTIVATIONS else UNKNOWN
    if facts["input.entries"] == 0:
        given = "None"
    elif facts["input.dtype"] == "fp8_e4m3" and not grouped:
        given = "fp8"
    static = not facts["input.is_dynamic"] and given == "fp8" and (
        facts["input.qscheme"] == "per_tensor" and facts["input.symmetric"] is True)
    served = _is_mx(facts) and (static or given == "None" or bool(facts["input.is_dynamic"]))
    return {"weight.mx": weight, "weight.mx_any": weight if served else None,
            "weight.mx_static": weight if static and served else None,
            "input.mx": "fp8_static" if static else given, "input.mx_name": name}


def _is_mx(facts: Facts) -> bool:
    """utils/ocp_mx_utils.py:ocp_mx_weight_dtype_and_rows."""
    if facts["weight.qscheme"] == "per_group":
        return bool(facts["weight.group_size"] == quark.MX_GROUP
                    and facts["weight.scale_format"] == "e8m0")
    return facts["weight.dtype"] == "fp8_e4m3" and facts["weight.qscheme"] == "per_block" and (
        facts["weight.block_k"] == quark.MX_GROUP
        and facts["weight.scale_type"] == "float8_e8m0fnu"
        and facts["weight.symmetric"] is True and not facts["weight.is_dynamic"])


def _int4(made: Plan, facts: Facts, experts: Experts) -> Plan:
    size, symmetric = quark.int4_weights(facts, experts.prefix)
    weight = f"kInt4Static{'32' if size == quark.MX_GROUP else ''}{'' if symmetric else 'Asym'}"

    def after(experts: Experts, backend: str | None, name: str) -> None:
        check_halved(size, experts, f"{SOURCE}:{made.method}")

    return made._replace(weight=weight, after=after, quant=integer_facts(
        "QuarkConfig", size, not symmetric, False))


def _mxfp8(made: Plan, facts: Facts, experts: Experts) -> Plan:
    def after(experts: Experts, backend: str | None, name: str) -> None:
        sizes = [experts.facts[fact] for fact in ("moe.hidden", "moe.shard")]
        if any(size % quark.MX_GROUP for size in sizes):
            raise refuse("shapes under TP", "ValueError",
                         "Quark MXFP8 MoE requires hidden_size and intermediate_size_per_partition "
                         f"divisible by {quark.MX_GROUP}, got {sizes[0]} and {sizes[1]}.",
                         experts.prefix, f"{SOURCE}:{made.method}.create_weights")

    return made._replace(after=after)


def _fp8_block(made: Plan, facts: Facts, experts: Experts) -> Plan:
    block = quark.BLOCK

    def after(experts: Experts, backend: str | None, name: str) -> None:
        check_blocks(block, experts, backend, name)

    return made._replace(after=after, quant={**made.quant, **block_facts(block)})


REFINED = {"int4": _int4, "fp8_block": _fp8_block, "mxfp8": _mxfp8}
"""Row of quark_experts -> what else its plan holds."""
