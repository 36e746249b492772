"""Compressed-tensors checkpoints: config groups, targets, ignore, 2:4 sparsity
(layers/quantization/compressed_tensors/compressed_tensors.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.ct_args import Args, read_args
from quantplan.dispatch.sglang import mxfp4
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.ct_experts import PACKED, assign_experts
from quantplan.dispatch.sglang.ct_names import find_target, is_ignored, is_named
from quantplan.dispatch.sglang.ct_schemes import Group, assign_group
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.fields import Config, given, names
from quantplan.dispatch.sglang.renames import all_renamed
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/compressed_tensors/compressed_tensors.py:CompressedTensorsConfig"
HEAD = "ParallelLMHead"
MXFP4 = "mxfp4"
MXFP4_GROUP = 32
EXPERT_TARGETS = ("FusedMoE", "Linear")
SPARSE_FORMATS = ("dense", "sparse-24-bitmask")
"""Formats of a 2:4 sparsity_config that supports_cutlass_24 looks for."""


class CtFields(NamedTuple):
    """What CompressedTensorsConfig keeps: target -> group in the config's order, the names that it
    leaves alone, the scheme of the KV cache, the targets that are stored 2:4 sparse, the format of
    the whole checkpoint."""

    targets: Mapping[str, Group]
    ignore: tuple[str, ...]
    kv_scheme: Config | None
    sparse: tuple[str, ...]
    format: Any = None


def read(config: Config | None, context: Context) -> CtFields:
    """Return the fields, or refuse as the config class and its QuantizationArgs do."""
    assert config is not None, "the class is refused without a config first"
    if "linear_fp8_config" in config:
        raise NotKnownError("linear_fp8_config of a compressed-tensors config",
                            hint="Its FP8 linear layers are not in SGLang's table yet.")
    targets: dict[str, Group] = {}
    for name, raw in _object(config, "config_groups").items():
        if listed := _targets(raw, name):
            group = _group(raw, name, config.get("format"), context)
            targets.update(dict.fromkeys(all_renamed(context, listed), group))
    if given(config, "ignore", default=()) is None:
        words = "argument of type 'NoneType'" if context.packed else "'NoneType' object"
        raise refuse("layer assignment", "TypeError", f"{words} is not iterable", None, SOURCE,
                     hint="quantization_config: ignore is a list of names.")
    return CtFields(targets, all_renamed(context, names(config.get("ignore"), "ignore")),
                    _object(config, "kv_cache_scheme") or None,
                    all_renamed(context, _sparse(config)), config.get("format"))


def _object(config: Config, field: str) -> Config:
    value = config.get(field) or {}
    if isinstance(value, Mapping):
        return value
    raise CheckpointError(f"quantization config: {field}", wanted="an object",
                          found=repr(value)[:60])


def _targets(raw: Any, name: str) -> tuple[str, ...]:
    """Return a group's targets; without any the rest of it is not read."""
    if isinstance(raw, Mapping) and raw.get("targets") is not None:
        return names(raw["targets"], f"config_groups: {name}: targets")
    raise CheckpointError(f"quantization config: config_groups: {name}: targets",
                          wanted="a list of names", found=repr(raw)[:60])


def _group(raw: Config, name: str, default_format: Any, context: Context) -> Group:
    """Return a group. Its inputs are read where its format quantizes them."""
    where, own = f"config_groups: {name}", raw.get("format")
    weights = read_args(raw.get("weights"), f"{where}: weights")
    if weights is None:
        raise CheckpointError(f"quantization config: {where}: weights", wanted="an object",
                              found="nothing")
    group_format = own if own is not None else default_format
    inputs = raw.get("input_activations")
    quantizes = group_format in context.table["ct_formats"] and inputs
    return Group(weights, read_args(inputs, f"{where}: input_activations") if quantizes else None,
                 group_format)


def _sparse(config: Config) -> tuple[str, ...]:
    """Return the targets that a 2:4 sparsity_config leaves to the sparse kernel."""
    sparsity = _object(config, "sparsity_config")
    if not sparsity:
        return ()
    if not isinstance(sparsity.get("format"), str):
        raise CheckpointError("quantization config: sparsity_config: format", wanted="text",
                              found=repr(sparsity.get("format"))[:60])
    ignored = names(sparsity.get("ignore"), "sparsity_config: ignore")
    fits = sparsity.get("sparsity_structure") == "2:4" and sparsity["format"] in SPARSE_FORMATS
    targets = names(sparsity.get("targets"), "sparsity_config: targets")
    return tuple(t for t in targets if fits and t not in ignored)


def kv_algo(fields: CtFields) -> str | None:
    """Return FP8 where the checkpoint has static scales of the KV cache that the engine reads
    (CompressedTensorsKVCacheMethod.is_supported_scheme)."""
    scheme = fields.kv_scheme or {}
    fits = (scheme.get("type") == "float" and scheme.get("num_bits") == 8
            and scheme.get("strategy") == "tensor" and scheme.get("symmetric", True)
            and not scheme.get("dynamic", False))
    return "FP8" if fits else None


def kv_method(fields: CtFields) -> str | None:
    """Return the method of attention layers: there is one where their scales are read."""
    return "CompressedTensorsKVCacheMethod" if kv_algo(fields) else None


def fuses_shared(fields: CtFields) -> bool:
    """Return whether shared experts may be among the routed ones: linear layers are not of packed
    4-bit integers (models/deepseek_common/utils.py:is_wint4afp8_or_wint4a16_config)."""
    group = fields.targets.get("Linear")
    if group is None or fields.format != PACKED:
        return True
    weights, inputs = group.weights, group.inputs
    int4 = (weights.num_bits == 4 and weights.type == "int" and weights.symmetric
            and not weights.dynamic)
    return not (int4 and (inputs is None or (inputs.num_bits == 8 and bool(inputs.dynamic))))


def assign(fields: CtFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer, of lm_head where a target names it."""
    head = site.module.split == "vocab"
    if head and site.module.module != HEAD:
        return None
    ignored = is_ignored(context, site.path, fields.ignore)
    target = None
    if head:
        target = None if ignored else next(
            (t for t in fields.targets if is_named(site.path, (t,))), None)
        if target is None:
            return None
        _check_head(fields.targets[target].weights, site)
    elif fields.targets and not ignored:
        target = find_target(context, site.path, site.module.module, fields.targets)
    group = None if target is None else fields.targets[target]
    _check_sparse(fields, context, site, group)
    if group is None:
        return unquantized("named in ignore" if ignored else "no config group is given")
    return assign_group(group, context, site)


def experts(fields: CtFields, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts, which are Mxfp4MoEMethod's where the checkpoint's
    format is MXFP4, or what FusedMoE or Linear names is (_is_mxfp4_moe), ignored ones too."""
    named = (fields.targets.get(name) for name in EXPERT_TARGETS)
    if MXFP4 in str(fields.format) or any(_is_mxfp4(group.weights) for group in named if group):
        return mxfp4.experts(True, context, site, held)
    return assign_experts(fields.targets, fields.ignore, fields.format, context, site, held)


def _is_mxfp4(args: Args) -> bool:
    return (args.type == "float" and args.num_bits == 4 and args.strategy == "group"
            and args.group_size == MXFP4_GROUP and bool(args.symmetric))


def _check_head(weights: Args, site: Site) -> None:
    if weights.block_structure:
        raise refuse("layer assignment", "NotImplementedError", "Block-quantized lm_head is not "
                     "supported; use channel or tensor weight scales for the head.", site.path,
                     f"{SOURCE}.get_lm_head_scheme", hint="Leave lm_head out of the targets.")


def _check_sparse(fields: CtFields, context: Context, site: Site, group: Group | None) -> None:
    """Refuse what only the 2:4 kernel would serve (supports_cutlass_24)."""
    if not fields.sparse or find_target(context, site.path, site.module.module, fields.sparse,
                                        refuses=False) is None:
        return
    args = None if group is None else (group.weights, group.inputs)
    if args is None or (args[1] is not None and _fits_sparse(args[0], args[1])):
        raise refuse("layer assignment", "ImportError", "CompressedTensors24 is not supported now",
                     site.path, f"{SOURCE}.get_linear_scheme",
                     hint="Serve a checkpoint whose weights are not 2:4 sparse.")


def _fits_sparse(weights: Args, inputs: Args) -> bool:
    return (weights.strategy in ("tensor", "channel") and inputs.strategy in ("tensor", "token")
            and weights.num_bits == inputs.num_bits == 8)
