"""quant_method compressed-tensors: config groups, targets, ignore, schemes
(model_executor/layers/quantization/compressed_tensors/)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.trace import Selection
from quantplan.dispatch.vllm import fp8, nvfp4
from quantplan.dispatch.vllm.context import Assignment, Context, Site, refuse
from quantplan.dispatch.vllm.ct_args import Args, read_args
from quantplan.dispatch.vllm.ct_schemes import ACTIVATION_FORMATS, Group, scheme_of
from quantplan.dispatch.vllm.fields import Config, bad_config, names
from quantplan.dispatch.vllm.ignore import find_target, is_ignored
from quantplan.dispatch.vllm.integers import act_words, integer_quant, marlin_input_dtype
from quantplan.tables.errors import CheckpointError, NotKnownError

FOLDER = "model_executor/layers/quantization/compressed_tensors"
SOURCE = f"{FOLDER}/compressed_tensors.py:CompressedTensorsConfig"
GROUP_SOURCE = "distributed/utils.py:verify_group_size_divides_partition"
BIASED = {2: "uint2b2", 3: "uint3b4", 4: "uint4b8", 5: "uint5b16", 6: "uint6b32", 7: "uint7b64",
          8: "uint8b128"}
"""schemes/compressed_tensors_wNa16.py:WNA16_SUPPORTED_TYPES_MAP."""


class CtFields(NamedTuple):
    """CompressedTensorsConfig after construction: target -> group, in the config's order."""

    targets: Mapping[str, Group]
    ignore: tuple[str, ...]
    kv_scheme: Mapping[str, Any] | None


def read(config: Config, context: Context) -> CtFields:
    """Return the fields of a compressed-tensors checkpoint, or refuse as its constructor does."""
    targets: dict[str, Group] = {}
    for name, raw in (config.get("config_groups") or {}).items():
        if not isinstance(raw, Mapping) or not _is_names(raw.get("targets")):
            raise CheckpointError(f"quantization_config: config_groups: {name}: targets",
                                  wanted="a list of names", found=repr(raw)[:60])
        if _is_attention_group(raw["targets"]):
            continue
        group = _group(raw, name, config.get("format"))
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


def _group(raw: Mapping[str, Any], name: str, default_format: str | None) -> Group:
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
    if inputs is None and group_format in ACTIVATION_FORMATS and weights.type != "float":
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
    path = "" if site.name == "embed_tokens" else site.path
    packed = context.structure.packed
    ignored = bool(path) and is_ignored(path, fields.ignore, packed)
    target = None if ignored else find_target(
        path, site.module.module, list(fields.targets), packed)
    if target is None:
        return _untargeted(site, ignored)
    if site.name == "embed_tokens":
        raise NotKnownError("a compressed-tensors target names the embedding",
                            hint="Quantized embeddings are not in this version's table yet.")
    group = fields.targets[target]
    scheme = scheme_of(group, context.gpu.capability,
                       context.table["schemes"]["CompressedTensorsW8A8Fp8"]["min_capability"],
                       site.path)
    row = context.table["schemes"][scheme]
    if not row["resolves"]:
        raise NotKnownError(f"{site.path}: scheme {scheme}", wanted="a scheme whose kernels are "
                            "in the table", hint="Its kernel family is not tabulated yet.")
    if not row.get("kernel_first"):
        _check_capability(row, context, site)
    return SCHEMES[scheme](group, context, site)._replace(scheme=scheme)


def _untargeted(site: Site, ignored: bool) -> Assignment | None:
    if site.module.split == "vocab":
        return None
    why = "named in ignore" if ignored else "no config group targets it"
    return Assignment("UnquantizedLinearMethod", why=why)


def _check_capability(row: Mapping[str, Any], context: Context, site: Site) -> None:
    if context.gpu.capability < row["min_capability"]:
        raise refuse("layer assignment", "RuntimeError",
                     "Quantization scheme is not supported for the current GPU. Min capability: "
                     f"{row['min_capability']}. Current capability: {context.gpu.capability}.",
                     site.path, row["source"],
                     hint="No flag changes this; use another format or a newer GPU.")


def _fp8_w8a8(group: Group, context: Context, site: Site) -> Assignment:
    weights, inputs = group.weights, group.inputs
    static = inputs is not None and not inputs.dynamic
    if weights.block_structure:
        if static:
            raise refuse("layer assignment", "AssertionError", "", site.path,
                         f"{FOLDER}/schemes/compressed_tensors_w8a8_fp8.py:CompressedTensorsW8A8Fp8",
                         hint="Block FP8 weights take dynamic activations only.")
        block = (weights.block_structure[0], weights.block_structure[1])
        fp8.check_block_shape(site, block, context.deployment.tp)
        return Assignment("CompressedTensorsLinearMethod", None, "fp8_block_w8a8",
                          fp8.block_quant(block), "group")
    quant = fp8.scale_quant(str(weights.strategy), "tensor" if static else "token", static)
    return Assignment("CompressedTensorsLinearMethod", None, "fp8_w8a8", quant,
                      fp8.act_name(quant))


def _fp8_w8a16(group: Group, context: Context, site: Site) -> Assignment:
    weights = group.weights
    if weights.block_structure:
        fp8.check_block_shape(site, (weights.block_structure[0], weights.block_structure[1]),
                              context.deployment.tp)
    static = group.inputs is not None and not group.inputs.dynamic
    granularity = "block128x128" if weights.strategy == "block" else str(weights.strategy)
    why = "the checkpoint quantizes weights only" if group.inputs is None else (
        f"this GPU ({context.gpu.capability_text}) has no FP8 tensor cores")
    return Assignment("CompressedTensorsLinearMethod", None, "w8a16_fp8",
                      fp8.scale_quant(granularity, "tensor", static), "none", why=why)


def _int8(group: Group, context: Context, site: Site) -> Assignment:
    static = group.inputs is not None and not group.inputs.dynamic
    return Assignment("CompressedTensorsLinearMethod", None, "int8_w8a8", {},
                      "static" if static else "per_token")


def _wna16(group: Group, context: Context, site: Site) -> Assignment:
    weights = group.weights
    group_size = -1 if weights.group_size is None else weights.group_size
    _check_wna16(weights, group_size, site)
    kind = BIASED[weights.num_bits] if weights.symmetric else f"uint{weights.num_bits}"
    quant = integer_quant(site, kind, weights.num_bits, group_size, not weights.symmetric,
                          context.dtype)
    return Assignment("CompressedTensorsLinearMethod", None, "mixed_precision", quant, "none")


def _check_wna16(weights: Args, group_size: int, site: Site) -> None:
    source = f"{FOLDER}/schemes/compressed_tensors_wNa16.py:CompressedTensorsWNA16"
    if group_size == -1 and weights.strategy != "channel":
        raise refuse("layer assignment", "ValueError",
                     "Pack-quantized format requires group quantization or channelwise "
                     "quantization, but found no group size and strategy is not channelwise.",
                     site.path, source)
    if weights.num_bits not in BIASED:
        raise refuse("layer assignment", "ValueError",
                     f"Unsupported num_bits = {weights.num_bits}. Supported num_bits = "
                     f"{list(BIASED)}", site.path, source)


def _microscaled(family: str, act: str) -> Callable[[Group, Context, Site], Assignment]:
    """MX formats fix everything but the shape, which their kernels check."""
    return lambda group, context, site: Assignment(
        "CompressedTensorsLinearMethod", None, family, {}, act)


def _nvfp4(group: Group, context: Context, site: Site) -> Assignment:
    return nvfp4.layer("CompressedTensorsLinearMethod", weight_only=group.inputs is None)


SCHEMES = {
    "CompressedTensorsW4A4Fp4": _nvfp4,
    "CompressedTensorsW8A8Mxfp8": _microscaled("mxfp8", "group"),
    "CompressedTensorsW4A4Mxfp4": _microscaled("mxfp4", "group"),
    "CompressedTensorsW8A8Fp8": _fp8_w8a8,
    "CompressedTensorsW8A16Fp8": _fp8_w8a16,
    "CompressedTensorsW8A8Int8": _int8,
    "CompressedTensorsWNA16": _wna16,
}


def after_selection(
    context: Context, site: Site, assignment: Assignment, selection: Selection
) -> Assignment:
    """Return the assignment once the kernel is known: Marlin may take 8-bit activations, and a
    group that straddles ranks is refused only now (CompressedTensorsWNA16.create_weights)."""
    row = context.table["schemes"][assignment.scheme]
    if row.get("kernel_first"):
        _check_capability(row, context, site)
    if assignment.scheme != "CompressedTensorsWNA16":
        return assignment
    quant = dict(assignment.quant)
    if selection.kernel == "MarlinLinearKernel":
        act = marlin_input_dtype(context, site) or context.dtype
        quant = integer_quant(site, quant["quant.weight_type"], quant["quant.bits"],
                              quant["quant.group_size"], quant["quant.zero_points"], act)
    _check_whole_groups(quant["quant.group_size"], site)
    return assignment._replace(quant=quant, act=act_words(quant["quant.act_type"]))


def _check_whole_groups(group_size: int, site: Site) -> None:
    shard = site.shard
    if group_size == -1 and shard.k != shard.k_full:
        return
    whole = shard.k_full if group_size == -1 else group_size
    if shard.k % whole:
        raise refuse(
            "shapes under TP", "ValueError",
            f"Weight input_size_per_partition={shard.k} for layer '{site.path}' is not divisible "
            f"by group_size={whole}. This happens when tensor_parallel_size splits the layer "
            "input into shards that are not a whole number of quant groups. Consider reducing "
            "tensor_parallel_size.", site.path, GROUP_SOURCE,
            hint=f"Use a tensor parallel size that leaves whole groups of {whole}.")
