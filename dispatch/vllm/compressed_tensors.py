"""quant_method compressed-tensors: config groups, targets, ignore, schemes
(model_executor/layers/quantization/compressed_tensors/)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.ct_args import read_args
from quantplan.dispatch.trace import Selection, refuse
from quantplan.dispatch.vllm import ct_embedding, ct_integers
from quantplan.dispatch.vllm.context import Assignment, Context, Site, served_by, trait
from quantplan.dispatch.vllm.ct_layers import assign_group, check_capability
from quantplan.dispatch.vllm.ct_schemes import GROUP_ORDERS, Group
from quantplan.dispatch.vllm.ct_targets import CtFields, group_of
from quantplan.dispatch.vllm.ct_transforms import read_transforms, wrap
from quantplan.dispatch.vllm.fields import Config, bad_config, names
from quantplan.dispatch.vllm.gptq import ACT_ORDER
from quantplan.tables.errors import CheckpointError

FOLDER = "model_executor/layers/quantization/compressed_tensors"
SOURCE = f"{FOLDER}/compressed_tensors.py:CompressedTensorsConfig"


def read(config: Config, context: Context) -> CtFields:
    """Return the fields of a compressed-tensors checkpoint, or refuse as its constructor does."""
    targets: dict[str, Group] = {}
    formats = context.table["compressed_tensors"]["activation_formats"]
    act_order = trait(context.table, ACT_ORDER)
    for name, raw in (config.get("config_groups") or {}).items():
        if not isinstance(raw, Mapping) or not _is_names(raw.get("targets")):
            raise CheckpointError(f"quantization_config: config_groups: {name}: targets",
                                  wanted="a list of names", found=repr(raw)[:60])
        if not raw["targets"] or _is_attention_group(raw["targets"]):
            continue
        group = _group(raw, name, config.get("format"), formats, act_order)
        targets.update(dict.fromkeys(raw["targets"], group))
    _check_sparsity(config.get("sparsity_config"))
    return CtFields(targets, names(config, "ignore"), _kv_scheme(config.get("kv_cache_scheme")),
                    read_transforms(config.get("transform_config")))


def _kv_scheme(value: Any) -> Mapping[str, Any] | None:
    if value is None or isinstance(value, Mapping):
        return value
    raise CheckpointError("quantization config: kv_cache_scheme", wanted="an object",
                          found=repr(value)[:60])


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_attention_group(targets: list[Any]) -> bool:
    return len(targets) == 1 and str(targets[0]).endswith("Attention")


def _group(
    raw: Mapping[str, Any], name: str, default_format: str | None, formats: Sequence[str],
    act_order: bool,
) -> Group:
    weights = read_args(raw.get("weights"), f"config_groups: {name}: weights")
    if weights is None:
        raise CheckpointError(f"quantization_config: config_groups: {name}: weights",
                              wanted="an object", found="nothing", hint="A group without weights "
                              "is left out only when its one target ends with Attention.")
    if weights.actorder in GROUP_ORDERS and not act_order:
        raise bad_config("Compressed-tensors group/dynamic activation ordering "
                         f"(actorder={weights.actorder!r}) is no longer supported. Use a "
                         "checkpoint with static/weight activation ordering or without "
                         "activation ordering.", SOURCE,
                         f"Re-quantize without it, or serve it with {served_by(ACT_ORDER)}.")
    own_format = raw.get("format")
    group_format = own_format if own_format is not None else default_format
    inputs = read_args(raw.get("input_activations") or None,
                       f"config_groups: {name}: input_activations")
    if inputs is None and group_format in formats and weights.type != "float":
        raise bad_config("", SOURCE, hint="This format wants input_activations with "
                         f"{weights.type} weights.")
    outputs = read_args(raw.get("output_activations") or None,
                        f"config_groups: {name}: output_activations")
    return Group(weights, inputs, outputs, group_format)


def _check_sparsity(sparsity: Any) -> None:
    if sparsity and not isinstance(sparsity.get("format"), str):
        raise CheckpointError("quantization_config: sparsity_config: format", wanted="text",
                              found=repr(sparsity.get("format"))[:60])
    if sparsity and sparsity.get("targets"):
        raise refuse("config fields", "DeprecationWarning",
                     "Sparsity support has been removed from compressed-tensors. Please use a "
                     "model without sparsity configuration.", None,
                     f"{SOURCE}._parse_sparsity_config",
                     hint="Remove sparsity_config when the weights are stored dense.")


def assign(fields: CtFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a layer; None for an embedding that no target names."""
    if site.module.split == "vocab":
        return ct_embedding.assign(fields, context, site)
    group, ignored = group_of(fields, context, site.path, site.module.module)
    why = "named in ignore" if ignored else "no config group targets it"
    plain = Assignment("UnquantizedLinearMethod", why=why)
    found = plain if group is None else assign_group(group, context, site)
    return wrap(fields.transforms, context, site, found) if fields.transforms else found


def after_selection(
    context: Context, site: Site, assignment: Assignment, selection: Selection
) -> Assignment:
    """Return the assignment once the kernel is known."""
    row = context.table["schemes"][assignment.scheme]
    if row.get("kernel_first"):
        check_capability(row, context, site)
    if "integer" in row:
        assignment = ct_integers.after_selection(row, context, site, assignment, selection)
    if assignment.late:
        assignment.late()
    return assignment
