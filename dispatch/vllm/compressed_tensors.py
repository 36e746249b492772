"""quant_method compressed-tensors: config groups, targets, ignore, schemes
(model_executor/layers/quantization/compressed_tensors/)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from quantplan.dispatch.trace import Refusal, Selection
from quantplan.dispatch.vllm import ct_integers, ct_layers
from quantplan.dispatch.vllm.context import Assignment, Context, Site, refuse
from quantplan.dispatch.vllm.ct_args import read_args
from quantplan.dispatch.vllm.ct_schemes import Group, scheme_of
from quantplan.dispatch.vllm.fields import Config, bad_config, names
from quantplan.dispatch.vllm.ignore import find_target, is_ignored
from quantplan.tables.errors import CheckpointError, NotKnownError

FOLDER = "model_executor/layers/quantization/compressed_tensors"
SOURCE = f"{FOLDER}/compressed_tensors.py:CompressedTensorsConfig"


class CtFields(NamedTuple):
    """CompressedTensorsConfig after construction: target -> group, in the config's order."""

    targets: Mapping[str, Group]
    ignore: tuple[str, ...]
    kv_scheme: Mapping[str, Any] | None


def read(config: Config, context: Context) -> CtFields:
    """Return the fields of a compressed-tensors checkpoint, or refuse as its constructor does."""
    targets: dict[str, Group] = {}
    formats = context.table["compressed_tensors"]["activation_formats"]
    for name, raw in (config.get("config_groups") or {}).items():
        if not isinstance(raw, Mapping) or not _is_names(raw.get("targets")):
            raise CheckpointError(f"quantization_config: config_groups: {name}: targets",
                                  wanted="a list of names", found=repr(raw)[:60])
        if _is_attention_group(raw["targets"]):
            continue
        group = _group(raw, name, config.get("format"), formats)
        targets.update(dict.fromkeys(raw["targets"], group))
    _check_sparsity(config.get("sparsity_config"))
    if config.get("transform_config"):
        raise NotKnownError("compressed-tensors with transform_config",
                            hint="CompressedTensorsLinearTransformMethod is not in the table yet.")
    return CtFields(targets, names(config, "ignore"), config.get("kv_cache_scheme"))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_attention_group(targets: list[Any]) -> bool:
    return len(targets) == 1 and str(targets[0]).endswith("Attention")


def _group(
    raw: Mapping[str, Any], name: str, default_format: str | None, formats: Sequence[str]
) -> Group:
    weights = read_args(raw.get("weights"), f"config_groups: {name}: weights")
    if weights is None:
        raise CheckpointError(f"quantization_config: config_groups: {name}: weights",
                              wanted="an object", found="nothing")
    if weights.actorder in ("group", "dynamic"):
        raise bad_config("Compressed-tensors group/dynamic activation ordering "
                         f"(actorder={weights.actorder!r}) is no longer supported. Use a "
                         "checkpoint with static/weight activation ordering or without "
                         "activation ordering.", SOURCE)
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
    if isinstance(sparsity, Mapping) and sparsity.get("targets"):
        raise refuse("config fields", "DeprecationWarning",
                     "Sparsity support has been removed from compressed-tensors. Please use a "
                     "model without sparsity configuration.", None,
                     f"{SOURCE}._parse_sparsity_config",
                     hint="Remove sparsity_config when the weights are stored dense.")


def assign(fields: CtFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a layer; None for an embedding that no target names."""
    if site.name == "embed_tokens":
        return _embedding(fields, context, site)
    group, ignored = group_of(fields, context, site.path, site.module.module)
    if group is None:
        why = "named in ignore" if ignored else "no config group targets it"
        return None if site.module.split == "vocab" else Assignment("UnquantizedLinearMethod",
                                                                    why=why)
    if site.module.split != "vocab":
        return _scheme_assignment(group, context, site)
    try:
        return _scheme_assignment(group, context, site)
    except Refusal as refusal:
        if refusal.error.type != "ValueError":
            raise
        return _packed_embedding(group, site)


def group_of(
    fields: CtFields, context: Context, path: str, module: str
) -> tuple[Group | None, bool]:
    """Return the config group that serves a layer of class `module`, None where there is none, and
    whether `ignore` names the layer."""
    packed = context.structure.packed
    if is_ignored(path, fields.ignore, packed):
        return None, True
    target = find_target(path, module, list(fields.targets), packed)
    return (None if target is None else fields.targets[target]), False


def _scheme_assignment(group: Group, context: Context, site: Site) -> Assignment:
    row = scheme_of(group, context.table, context.facts, site.path)
    if not row["resolves"]:
        raise NotKnownError(f"{site.path}: scheme {row['id']}", wanted="a scheme whose kernels are "
                            "in the table", hint="Its kernel family is not tabulated yet.")
    if not row.get("kernel_first"):
        _check_capability(row, context, site)
    return ct_layers.assign_scheme(row, group, context, site)


def _check_capability(row: Mapping[str, Any], context: Context, site: Site) -> None:
    if context.gpu.capability < row["min_capability"]:
        raise refuse("layer assignment", "RuntimeError",
                     "Quantization scheme is not supported for the current GPU. Min capability: "
                     f"{row['min_capability']}. Current capability: {context.gpu.capability}.",
                     site.path, row["source"],
                     hint="No flag changes this; use another format or a newer GPU.")


def _embedding(fields: CtFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of the embedding, which the engine builds without a name."""
    group, _ = group_of(fields, context, "", site.module.module)
    return None if group is None else _packed_embedding(group, site)


def _packed_embedding(group: Group, site: Site) -> Assignment:
    """Return the assignment of an embedding whose rows are unpacked when they are looked up."""
    weights = group.weights
    source = f"{FOLDER}/compressed_tensors_embedding.py:CompressedTensorsEmbeddingWNA16Int"
    if weights.strategy not in ("channel", "group") or weights.dynamic or weights.type != "int":
        raise refuse("layer assignment", "ValueError",
                     "compressed-tensors embeddings only support weight-only INT group/channel "
                     f"(WNA16) quantization, got: {weights}", site.path, source,
                     hint="Name embed_tokens and lm_head in ignore.")
    if weights.group_size and weights.strategy == "group" and site.shard.k % weights.group_size:
        raise refuse("shapes under TP", "AssertionError", "", site.path, source)
    return Assignment("CompressedTensorsEmbeddingWNA16Int",
                      why="its rows are dequantized when they are looked up")


def after_selection(
    context: Context, site: Site, assignment: Assignment, selection: Selection
) -> Assignment:
    """Return the assignment once the kernel is known."""
    row = context.table["schemes"][assignment.scheme]
    if row.get("kernel_first"):
        _check_capability(row, context, site)
    if "integer" not in row:
        return assignment
    return ct_integers.after_selection(row, context, site, assignment, selection)
