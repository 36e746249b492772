"""quant_method gptq: AutoGPTQConfig (model_executor/layers/quantization/auto_gptq.py,
utils/gptq_utils.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from quantplan.dispatch.expressions import search
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site, served_by, trait
from quantplan.dispatch.vllm.fields import Config, bad_config, names, need
from quantplan.dispatch.vllm.headers import assumed_plain, quantized_modules
from quantplan.dispatch.vllm.ignore import partly_quantized
from quantplan.dispatch.vllm.integers import (
    act_words,
    integer_quant,
    marlin_input_dtype,
    marlin_unsupported,
    whole_scales,
)
from quantplan.tables.record import NamedTuple

SOURCE = "model_executor/layers/quantization/auto_gptq.py:AutoGPTQConfig"
ACT_ORDER = "grouped_act_order"
"""The trait of versions whose kernels take groups ordered by activation (g_idx)."""
DESC_ACT_SOURCE = (
    "model_executor/layers/quantization/utils/gptq_utils.py:normalize_and_validate_gptq_desc_act")
QUANTIZED_SOURCE = (
    "model_executor/layers/quantization/utils/gptq_utils.py:is_layer_gptq_quantized")
WEIGHT_TYPES = {(4, True): "uint4b8", (8, True): "uint8b128"}
"""AutoGPTQConfig.TYPE_MAP."""


class GptqFields(NamedTuple):
    """AutoGPTQConfig after construction and after it looked into the safetensors headers."""

    bits: int
    group: int
    sym: bool
    desc_act: bool
    lm_head: bool
    dynamic: Mapping[str, Any]
    quantized: frozenset[str]
    config: Config
    plain: frozenset[str] = frozenset()


def read(config: Config, context: Context) -> GptqFields:
    """Return the fields of a GPTQ checkpoint, or refuse as AutoGPTQConfig does."""
    dynamic = config.get("dynamic") or {}
    bits, group = need(config, "bits"), need(config, "group_size")
    desc_act, sym = need(config, "desc_act"), need(config, "sym")
    if not trait(context.table, ACT_ORDER):
        check_desc_act(desc_act, group, dynamic)
    _weight_type(bits, sym, "config fields", None)
    listed = names(config, "modules_in_block_to_quantize", nested=True)
    plain = () if listed else assumed_plain(context.checkpoint, context.structure)
    return GptqFields(bits, group, sym, bool(desc_act and group != -1),
                      bool(config.get("lm_head")), dynamic,
                      frozenset(listed or quantized_modules(context.checkpoint)), config,
                      frozenset(plain))


def check_desc_act(desc_act: Any, group: Any, dynamic: Mapping[str, Any]) -> None:
    """Refuse activation ordering within groups, also when a dynamic rule turns it on."""
    if desc_act and group != -1:
        raise bad_config("GPTQ group activation ordering (desc_act=True) is no longer supported. "
                         "Use a checkpoint with static activation ordering or desc_act=False.",
                         DESC_ACT_SOURCE, _without_g_idx())
    for pattern, rules in dynamic.items():
        if pattern.startswith("-:") or not isinstance(rules, Mapping):
            continue
        if rules.get("desc_act", desc_act) and rules.get("group_size", group) != -1:
            raise bad_config(
                "GPTQ group activation ordering (desc_act=True) is no longer supported, but is "
                f"enabled by dynamic rule {pattern!r}. Use a checkpoint with static activation "
                "ordering or desc_act=False.", DESC_ACT_SOURCE, _without_g_idx())


def _without_g_idx() -> str:
    return f"Re-quantize with desc_act=False, or serve it with {served_by(ACT_ORDER)}."


def _weight_type(bits: Any, sym: Any, stage: str, layer: str | None) -> str:
    if (bits, sym) in WEIGHT_TYPES:
        return WEIGHT_TYPES[bits, sym]
    kind = "ValueError" if layer else "ValidationError"
    raise refuse(stage, kind, f"Unsupported quantization config: bits={bits}, sym={sym}", layer,
                 f"{SOURCE}.TYPE_MAP", hint="Only 4 and 8 bits with sym=true are served.")


def assign(fields: GptqFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a layer, after `dynamic` rules and the list of quantized modules."""
    is_head = site.module.split == "vocab"
    if is_head and not (site.is_head and fields.lm_head):
        return None
    quantized = site.path not in fields.plain and _is_quantized(
        site.path, fields.quantized, context)
    rule = dynamic_rule(fields.dynamic, site.path)
    if rule is None or not quantized:
        marlin_input_dtype(context, site)
        method = "UnquantizedEmbeddingMethod" if is_head else "UnquantizedLinearMethod"
        why = "skipped by a dynamic rule" if rule is None else "stored in 16 bits"
        return Assignment(method, why=why)
    return _kernel_list(fields, rule, context, site)


def _kernel_list(
    fields: GptqFields, rule: Mapping[str, Any], context: Context, site: Site
) -> Assignment:
    bits, group, sym = overridden(fields, rule, site.path)
    weight_type = WEIGHT_TYPES[bits, sym]
    reason = marlin_unsupported(context.gpu.capability, weight_type, group, False)
    if reason:
        raise refuse("layer assignment", "ValueError", reason, site.path,
                     "model_executor/layers/quantization/utils/marlin_utils.py:"
                     "verify_marlin_supported",
                     hint="Use a group size of 32, 64, 128 or -1, and a GPU of 7.5 or newer.")
    act = marlin_input_dtype(context, site) or context.dtype
    quant = integer_quant(site, weight_type, bits, group, False, act)
    ordered = rule["desc_act"] if isinstance(rule.get("desc_act"), bool) else fields.desc_act
    if ordered and trait(context.table, ACT_ORDER):
        quant["quant.g_idx"] = True
    return Assignment("AutoGPTQLinearMethod", None, "mixed_precision", quant, act_words(act),
                      note=whole_scales(context, site, quant))


def overridden(fields: GptqFields, rule: Mapping[str, Any], path: str) -> tuple[int, int, bool]:
    """Return bits, group size and symmetry of a layer after its `dynamic` rule, or refuse
    (gptq_utils.py:override_config)."""
    bits, group = rule.get("bits", fields.bits), rule.get("group_size", fields.group)
    sym = rule["sym"] if isinstance(rule.get("sym"), bool) else fields.sym
    _weight_type(bits, sym, "layer assignment", path)
    return bits, group, sym


def dynamic_rule(dynamic: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Return the first matching rule, {} when none matches, None when a -: rule skips the layer."""
    for pattern, rule in dynamic.items():
        if pattern.startswith("-:"):
            if search(pattern[2:], path):
                return None
        elif search(pattern.removeprefix("+:"), path):
            return rule if isinstance(rule, Mapping) else {}
    return {}


def _is_quantized(path: str, quantized: Collection[str], context: Context) -> bool:
    if not quantized:
        return True
    name = path.rsplit(".", 1)[-1]
    leaves = context.structure.packed.get(name)
    if leaves is None:
        return _holds(path, quantized)
    verdicts = [_holds(path.replace(name, leaf), quantized) for leaf in leaves]
    if any(verdicts) and not all(verdicts):
        raise partly_quantized(path, QUANTIZED_SOURCE)
    return all(verdicts)


def _holds(path: str, quantized: Collection[str]) -> bool:
    """Return whether one of the listed modules is `path` or a part of it."""
    return path in quantized or any(module in path for module in quantized)
