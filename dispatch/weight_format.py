"""How a checkpoint's weights are stored, read from its quantization_config field by field: bits,
group, block, symmetry. What no layout describes is named, never approximated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.load import read_table

Config = Mapping[str, Any]

CONFIG_FIELDS = ("quantization_config", "compression_config")
STATIC, STATIC_ZERO = "static_activation", "static_activation_zero_point"
ZERO_POINTS, ORDER = "zero_points", "activation_order"


class WeightFormat(NamedTuple):
    """One way of storing linear layers: a layout of tables/formats and its parameters.

    `group` counts the input features of one scale (-1: all of them); `block` is [n, k] of a weight
    block; `ignored` are the names that the config leaves unquantized, as written; with
    `experts_only` it is of routed experts alone.
    """

    layout: str
    bits: int
    group: int = -1
    block: tuple[int, int] | None = None
    features: frozenset[str] = frozenset()
    lm_head: bool = False
    ignored: tuple[str, ...] = ()
    symmetric: bool = True
    experts_only: bool = False

    @property
    def tensors(self) -> list[Mapping[str, Any]]:
        """Return the rows of the tensors that one quantized module has in this format."""
        return [row for row in layout_row(self.layout)["tensors"]
                if row.get("only") in (None, *self.features)]

    def row(self, name: str) -> Mapping[str, Any] | None:
        """Return the row of the tensor called `name`, None when the format has none."""
        return next((row for row in self.tensors if row["name"] == name), None)

    @property
    def scale_text(self) -> str:
        """Return what one weight scale covers: per-tensor, per-channel, block 128x128, g128."""
        scale = layout_row(self.layout)["scale"]
        if self.block:
            return f"block {self.block[0]}x{self.block[1]}"
        return f"per-{scale}" if scale != "group" else (
            f"g{self.group}" if self.group > 0 else "per-channel")

    @property
    def title(self) -> str:
        """Return what people call it: "fp8 per-tensor", "int4 g128 sym"."""
        name = f"{layout_row(self.layout)['number']}{self.bits} {self.scale_text}"
        return name + (" sym" if self.symmetric else " asym") if self.group > 0 else name


@cache
def layout_row(layout: str) -> Mapping[str, Any]:
    """Return the row of a layout."""
    rows: list[Mapping[str, Any]] = read_table("formats/formats")["layouts"]
    return next(row for row in rows if row["id"] == layout)


def file_shape(row: Config, weights: WeightFormat, n: int, k: int) -> tuple[int, ...]:
    """Return the shape of tensor `row` of a module with n output and k input features."""
    return tuple(_size(dim, row, weights, n, k) for dim in row["dims"])


def _size(dim: str, row: Config, weights: WeightFormat, n: int, k: int) -> int:
    if dim in ("n", "k"):
        size = n if dim == "n" else k
        return _ceil(size * weights.bits, word_bits(row)) if row.get("packed") == dim else size
    if dim == "groups":
        return _ceil(k, weights.group) if weights.group > 0 else 1
    if dim in ("n_blocks", "k_blocks") and weights.block:
        return _ceil(n, weights.block[0]) if dim == "n_blocks" else _ceil(k, weights.block[1])
    return int(dim)


def word_bits(row: Config) -> int:
    """Return the bits of one stored element of a packed tensor: 32-bit words, or bytes."""
    return int(read_table("formats/formats")["dtype_bits"][row["dtype"]])


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)


def quantization_config(config: Config) -> Config | None:
    """Return the config's quantization section, None when it has none.

    Raises CheckpointError when it is not a mapping.
    """
    found = next((config[name] for name in CONFIG_FIELDS if config.get(name)), None)
    if found is not None and not isinstance(found, Mapping):
        raise CheckpointError("config.json: quantization_config", wanted="an object",
                              found=type(found).__name__)
    return found


def read_format(config: Config) -> WeightFormat | None:
    """Return how the linear layers of a config.json are stored; None for 16 or 32-bit weights.

    Raises NotKnownError for a format without a layout, CheckpointError for a field that is missing
    or cannot be.
    """
    section = quantization_config(config)
    if section is None:
        return None
    method = str(section.get("quant_method", "")).lower()
    readers = {"fp8": _fp8, "awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed_tensors,
               "mxfp4": _mxfp4}
    if method.startswith("modelopt") or "quant_algo" in section or "quantization" in section:
        from quantplan.dispatch.modelopt_format import modelopt_format

        return modelopt_format(section)
    if method not in readers:
        raise not_known(f"quant_method {method or 'absent'}", ", ".join(readers))
    return readers[method](section)


def not_known(what: str, wanted: str) -> NotKnownError:
    return NotKnownError(f"weight format: {what}", wanted=wanted,
                         hint="Its bytes are not approximated; safetensors headers give them.")


def _fp8(section: Config) -> WeightFormat:
    ignored = names_of(section, "ignored_layers", "modules_to_not_convert")
    block = section.get("weight_block_size")
    if block is not None:
        return WeightFormat("fp8-block", 8, block=_block(block), ignored=ignored)
    scheme = section.get("activation_scheme")
    if scheme not in ("static", "dynamic"):
        raise _bad("activation_scheme", "static or dynamic", scheme)
    features = frozenset([STATIC] if scheme == "static" else [])
    return WeightFormat("fp8-tensor", 8, features=features, ignored=ignored)


def _mxfp4(section: Config) -> WeightFormat:
    return WeightFormat("mxfp4", 4, 32, experts_only=True)


def _awq(section: Config) -> WeightFormat:
    bits = _integer(section, "bits", "w_bit")
    if bits not in (4, 8):
        raise not_known(f"awq with {bits} bits", "4 or 8 bits")
    symmetric = section.get("zero_point") is False
    return WeightFormat("awq", bits, _group(section, "group_size", "q_group_size"),
                        lm_head=bool(section.get("lm_head")), symmetric=symmetric,
                        ignored=names_of(section, "modules_to_not_convert"))


def _gptq(section: Config) -> WeightFormat:
    bits = _integer(section, "bits")
    if bits not in (2, 4, 8):
        raise not_known(f"gptq with {bits} bits", "2, 4 or 8 bits")
    if section.get("checkpoint_format", "gptq") not in ("gptq", "gptq_v2"):
        raise not_known(f"gptq in the format {section['checkpoint_format']}", "gptq or gptq_v2")
    rules = section.get("dynamic") or {}
    if not isinstance(rules, Mapping) or any(not str(name).startswith("-:") for name in rules):
        raise not_known("gptq with dynamic rules that change bits or groups",
                         "one format for all layers")
    return WeightFormat("gptq", bits, _group(section, "group_size"),
                        lm_head=bool(section.get("lm_head")), ignored=tuple(map(str, rules)),
                        symmetric=section.get("sym") is not False)


def _compressed_tensors(section: Config) -> WeightFormat:
    if section.get("sparsity_config") or section.get("transform_config"):
        raise not_known("compressed-tensors with sparsity or transforms", "quantization alone")
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _bad("config_groups", "at least one group", groups)
    found = {_group_format(group, section) for group in groups.values()}
    if len(found) > 1:
        raise not_known("compressed-tensors with groups of different formats",
                         "one format for all layers")
    ignored = tuple(name for name in names_of(section, "ignore") if name != "lm_head")
    return found.pop()._replace(ignored=ignored)


def _group_format(group: Any, section: Config) -> WeightFormat:
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        raise _bad("config_groups", "groups with weights", group)
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
    block = _block(weights.get("block_structure")) if strategy == "block" else None
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
    group = _group(weights, "group_size") if strategy == "group" else -1
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


def _integer(section: Config, *names: str) -> int:
    value = next((section[name] for name in names if name in section), None)
    if type(value) is not int:
        raise _bad(names[0], "an integer", value)
    return value


def _group(section: Config, *names: str) -> int:
    value = _integer(section, *names)
    if value != -1 and value <= 0:
        raise _bad(names[0], "a positive integer or -1", value)
    return value


def _block(value: Any) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(
            type(size) is int and size > 0 for size in value):
        return value[0], value[1]
    raise _bad("weight block", "two positive integers", value)


def names_of(section: Config, *fields: str) -> tuple[str, ...]:
    value = next((section[name] for name in fields if section.get(name)), ())
    return tuple(str(name) for name in value) if isinstance(value, (list, tuple)) else ()


def _bad(field: str, wanted: str, found: Any) -> CheckpointError:
    return CheckpointError(f"quantization_config: {field}", wanted=wanted,
                           found="nothing" if found is None else repr(found)[:80])
