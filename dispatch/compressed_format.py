"""How a compressed-tensors checkpoint stores its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from quantplan.dispatch.weight_format import (
    STATIC,
    Config,
    WeightFormat,
    bad_field,
    block_of,
    group_of,
    names_of,
    not_known,
)

STATIC_ZERO = "static_activation_zero_point"
ZERO_POINTS, ORDER = "zero_points", "activation_order"


def compressed_format(section: Config) -> WeightFormat:
    """Return the format of a compressed-tensors config; raise NotKnownError for one without a
    layout, or one per layer."""
    if section.get("sparsity_config") or section.get("transform_config"):
        raise not_known("compressed-tensors with sparsity or transforms", "quantization alone")
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise bad_field("config_groups", "at least one group", groups)
    found = {_group_format(group, section) for group in groups.values()}
    if len(found) > 1:
        raise not_known("compressed-tensors with groups of different formats",
                         "one format for all layers")
    ignored = tuple(name for name in names_of(section, "ignore") if name != "lm_head")
    return found.pop()._replace(ignored=ignored)


def _group_format(group: Any, section: Config) -> WeightFormat:
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        raise bad_field("config_groups", "groups with weights", group)
    if group.get("targets") != ["Linear"]:
        raise not_known(f"compressed-tensors targets {group.get('targets')}", '["Linear"]')
    form = str(group.get("format") or section.get("format"))
    weights, inputs = group["weights"], group.get("input_activations")
    reader = _CT_READERS.get((form, str(weights.get("type", "int"))))
    found = reader(weights, inputs) if reader and not group.get("output_activations") else None
    if found is None:
        raise not_known("compressed-tensors " + " ".join(_ct_words(form, weights, inputs)),
                         "FP8, INT8 with 8-bit activations, or packed integers")
    return found


def _ct_float(weights: Config, inputs: Any) -> WeightFormat | None:
    strategy = _strategy(weights)
    if weights.get("num_bits", 8) != 8 or weights.get("symmetric") is False or strategy not in (
            "tensor", "channel", "block"):
        return None
    block = block_of(weights.get("block_structure")) if strategy == "block" else None
    features = frozenset([STATIC] if _is_static(inputs) else [])
    return WeightFormat(f"ct-fp8-{strategy}", 8, block=block, features=features)


def _ct_int(weights: Config, inputs: Any) -> WeightFormat | None:
    strategy = _strategy(weights)
    if weights.get("num_bits", 8) != 8 or weights.get("symmetric") is False or strategy not in (
            "tensor", "channel") or not isinstance(inputs, Mapping):
        return None
    static = [STATIC] if _is_static(inputs) else []
    if static and inputs.get("symmetric") is False:
        static.append(STATIC_ZERO)
    return WeightFormat(f"ct-int8-{strategy}", 8, features=frozenset(static))


def _ct_pack(weights: Config, inputs: Any) -> WeightFormat | None:
    bits, strategy = weights.get("num_bits", 8), _strategy(weights)
    if _is_static(inputs) or bits not in range(2, 9) or strategy not in ("group", "channel"):
        return None
    group = group_of(weights, "group_size") if strategy == "group" else -1
    symmetric = weights.get("symmetric") is not False
    features = [] if symmetric else [ZERO_POINTS]
    if weights.get("actorder") in ("group", True):
        features.append(ORDER)
    return WeightFormat("ct-pack", bits, group, features=frozenset(features), symmetric=symmetric)


def _ct_small(  # noqa: PLR0917 - the four facts of a format, then what every reader takes
    layout: str, strategy: str, bits: int, group: int, weights: Config, inputs: Any
) -> WeightFormat | None:
    """Read NVFP4 and the MX formats, which fix bits and group."""
    if (weights.get("num_bits", 8), _strategy(weights), weights.get("group_size")) != (
            bits, strategy, group) or weights.get("symmetric") is False:
        return None
    scaled = isinstance(inputs, Mapping) and strategy == "tensor_group"
    return WeightFormat(layout, bits, group, features=frozenset([STATIC] if scaled else []))


_CT_READERS: Mapping[tuple[str, str], Callable[[Config, Any], WeightFormat | None]] = {
    ("float-quantized", "float"): _ct_float, ("naive-quantized", "float"): _ct_float,
    ("int-quantized", "int"): _ct_int, ("naive-quantized", "int"): _ct_int,
    ("pack-quantized", "int"): _ct_pack,
    ("nvfp4-pack-quantized", "float"): partial(_ct_small, "ct-nvfp4", "tensor_group", 4, 16),
    ("mxfp4-pack-quantized", "float"): partial(_ct_small, "ct-mxfp4", "group", 4, 32),
    ("mxfp8-quantized", "float"): partial(_ct_small, "ct-mxfp8", "group", 8, 32),
}


def _strategy(weights: Config) -> Any:
    """Return the strategy, inferred from group_size where absent, as QuantizationArgs does."""
    group = weights.get("group_size")
    inferred = "tensor" if group is None else "channel" if group == -1 else "group"
    return weights.get("strategy") or inferred


def _is_static(inputs: Any) -> bool:
    return isinstance(inputs, Mapping) and not inputs.get("dynamic")


def _ct_words(form: str, weights: Config, inputs: Any) -> Iterator[str]:
    yield form
    for name, args in (("weights", weights), ("activations", inputs)):
        if isinstance(args, Mapping):
            yield f"{name} {args.get('type', 'int')}{args.get('num_bits', 8)} {_strategy(args)}"
