"""The fields of an AMD Quark config, as its constructor reads them
(model_executor/layers/quantization/quark/quark.py:QuarkConfig)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch, fnmatchcase
from typing import Any

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.fields import Config, bad_config
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

SOURCE = "model_executor/layers/quantization/quark/quark.py:QuarkConfig"
Rule = Mapping[str, Any]
"""One layer's config: weight, input_tensors, output_tensors, bias."""


class QuarkFields(NamedTuple):
    """QuarkConfig after construction. None stands for a key that the config lacks: the engine
    fails where it first reads it."""

    overall: Rule | None
    layers: Mapping[str, Rule]
    has_types: bool
    ignore: tuple[str, ...] | None
    kv_config: Rule | None
    pack_method: str | None


def read_quark(config: Config) -> QuarkFields:
    """Return the fields of a Quark checkpoint, or refuse as its constructor does."""
    export = _section(config, "export")
    if export is None:
        raise bad_config("The export key should be included in the configurations of Quark "
                         "quantized model", f"{SOURCE}.from_config")
    groups, layers = export.get("kv_cache_group"), _section(config, "layer_quant_config")
    if groups is None:
        raise _crash("TypeError", "object of type 'NoneType' has no len()")
    if not isinstance(groups, list) or not all(isinstance(name, str) for name in groups):
        raise CheckpointError("quantization config: export: kv_cache_group",
                              wanted="a list of names", found=repr(groups)[:60])
    if not all(isinstance(rule, Mapping) for rule in (layers or {}).values()):
        raise CheckpointError("quantization config: layer_quant_config",
                              wanted="an object per layer", found="something else")
    kv_config = _kv_config(groups, layers) if groups else None
    if groups:
        layers = _without_kv_outputs(groups, layers or {})
    return QuarkFields(
        _section(config, "global_quant_config"), layers or {},
        _section(config, "layer_type_quant_config") is not None, _excluded(config), kv_config,
        export.get("pack_method"))


def _section(config: Config, name: str) -> Mapping[str, Any] | None:
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise CheckpointError(f"quantization config: {name}", wanted="an object",
                              found=repr(value)[:60])
    return value


def _excluded(config: Config) -> tuple[str, ...] | None:
    value = config.get("exclude")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise CheckpointError("quantization config: exclude", wanted="a list of names",
                              found=repr(value)[:60])
    return tuple(value)


def _crash(kind: str, words: str, layer: str | None = None) -> Exception:
    """Return the refusal of a config that lacks what the engine reads without asking."""
    stage = "layer assignment" if layer else "config fields"
    return refuse(stage, kind, words, layer, SOURCE,
                  hint="The config lacks a key that Quark's exporter writes.")


def _kv_config(groups: Sequence[str], layers: Mapping[str, Any] | None) -> Rule:
    """Return how the KV cache is quantized: what its layers' outputs share."""
    if layers is None:
        raise _crash("AttributeError", "'NoneType' object has no attribute 'keys'")
    found = _kv_rules(groups, layers)
    if not found:
        raise bad_config("The Quark quantized model has the kv_cache_group parameter setting, but "
                         "no kv_cache quantization settings were found in the quantization "
                         "configuration.", f"{SOURCE}.from_config")
    if any("output_tensors" not in rule for rule in found.values()):
        raise _crash("KeyError", "'output_tensors'")
    outputs = [rule["output_tensors"] for rule in found.values()]
    if not all(same(output, outputs[0]) for output in outputs):
        raise bad_config("The quantization method used for kv_cache should be the same, but the "
                         "quantization method for the kv_cache layer in the config is different.",
                         f"{SOURCE}.from_config")
    if outputs[0] is None:
        raise bad_config("The kv_cache quantization configuration is empty.",
                         f"{SOURCE}.from_config")
    if not isinstance(outputs[0], Mapping):
        raise CheckpointError("quantization config: output_tensors", wanted="an object",
                              found=repr(outputs[0])[:60])
    return outputs[0]


def _kv_rules(groups: Sequence[str], layers: Mapping[str, Any]) -> dict[str, Rule]:
    return {name: rule for name, rule in layers.items()
            if any(fnmatchcase(name, pattern) for pattern in groups)}


def _without_kv_outputs(groups: Sequence[str], layers: Mapping[str, Any]) -> Mapping[str, Rule]:
    """Return the layers' configs without the outputs that only the KV cache needs; q_proj's go
    with them, so that qkv agrees."""
    dropped = {*_kv_rules(groups, layers), "*q_proj"}
    return {name: {**rule, "output_tensors": None} if name in dropped else rule
            for name, rule in layers.items()}


def same(first: Any, second: Any) -> bool:
    """Return whether two configs agree (quark/utils.py:deep_compare: a list need only agree as far
    as the first one goes)."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) <= len(second) and all(map(same, first, second))
    return bool(first == second)


def rule_of(fields: QuarkFields, packed: Mapping[str, Sequence[str]], path: str) -> Rule:
    """Return the config of a layer: its own, else the overall one; every part of a fused layer
    must have the same (QuarkConfig._find_matched_config)."""
    if not fields.has_types:
        raise _crash("AttributeError", "'NoneType' object has no attribute 'get'", path)
    name = path.rsplit(".", 1)[-1]
    leaves = packed.get(name)
    found = [_own(fields, path)] if leaves is None else [
        None if leaf == name else _own(fields, path.replace(name, leaf)) for leaf in leaves]
    rules = [fields.overall if rule is None else rule for rule in found]
    if not all(same(rule, rules[0]) for rule in rules):
        raise refuse("layer assignment", "ValueError",
                     f"Found a different quantization configuration for {list(leaves or ())} in "
                     f"{path}. vLLM requires all to use the same scheme.", path,
                     f"{SOURCE}._find_matched_config",
                     hint="Give every part of a fused layer the same config.")
    if rules[0] is None:
        raise _crash("AttributeError", "'NoneType' object has no attribute 'get'", path)
    return rules[0]


def _own(fields: QuarkFields, path: str) -> Rule | None:
    """Return the first entry of layer_quant_config that a layer's name fits: as a part of the
    entry, or by a shell pattern (QuarkConfig.get_layer_quant_config_from_name)."""
    return next((rule for pattern, rule in fields.layers.items()
                 if (fnmatch(path, pattern) if "*" in pattern else path in pattern)), None)
