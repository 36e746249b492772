"""How a checkpoint's weights are stored, read from its quantization_config field by field: bits,
group, block, symmetry. What no layout describes is named, never approximated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.load import read_table
from quantplan.tables.record import NamedTuple

Config = Mapping[str, Any]

CONFIG_FIELDS = ("quantization_config", "compression_config")
STATIC = "static_activation"
"""The feature of formats with scales of activations in the checkpoint."""


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
    readers = {"fp8": _fp8, "awq": _awq, "gptq": _gptq, "mxfp4": _mxfp4}
    if method.startswith("modelopt") or "quant_algo" in section or "quantization" in section:
        from quantplan.dispatch.modelopt_format import modelopt_format

        return modelopt_format(section)
    if method == "compressed-tensors":
        from quantplan.dispatch.compressed_format import compressed_format

        return compressed_format(section)
    if method == "auto-round":
        from quantplan.dispatch.auto_round_format import auto_round_format

        return auto_round_format(section)
    if method not in readers:
        raise not_known(f"quant_method {method or 'absent'}",
                        ", ".join((*readers, "compressed-tensors", "auto-round")))
    return readers[method](section)


def not_known(what: str, wanted: str) -> NotKnownError:
    return NotKnownError(f"weight format: {what}", wanted=wanted,
                         hint="Its bytes are not approximated; safetensors headers give them.")


def _fp8(section: Config) -> WeightFormat:
    ignored = names_of(section, "ignored_layers", "modules_to_not_convert")
    block = section.get("weight_block_size")
    if block is not None:
        return WeightFormat("fp8-block", 8, block=block_of(block), ignored=ignored)
    scheme = section.get("activation_scheme")
    if scheme not in ("static", "dynamic"):
        raise bad_field("activation_scheme", "static or dynamic", scheme)
    features = frozenset([STATIC] if scheme == "static" else [])
    return WeightFormat("fp8-tensor", 8, features=features, ignored=ignored)


def _mxfp4(section: Config) -> WeightFormat:
    return WeightFormat("mxfp4", 4, 32, experts_only=True)


def _awq(section: Config) -> WeightFormat:
    bits = integer(section, "bits", "w_bit")
    if bits not in (4, 8):
        raise not_known(f"awq with {bits} bits", "4 or 8 bits")
    symmetric = section.get("zero_point") is False
    return WeightFormat("awq", bits, group_of(section, "group_size", "q_group_size"),
                        lm_head=bool(section.get("lm_head")), symmetric=symmetric,
                        ignored=names_of(section, "modules_to_not_convert"))


def _gptq(section: Config) -> WeightFormat:
    bits = integer(section, "bits")
    if bits not in (2, 4, 8):
        raise not_known(f"gptq with {bits} bits", "2, 4 or 8 bits")
    if section.get("checkpoint_format", "gptq") not in ("gptq", "gptq_v2"):
        raise not_known(f"gptq in the format {section['checkpoint_format']}", "gptq or gptq_v2")
    rules = section.get("dynamic") or {}
    if not isinstance(rules, Mapping) or any(not str(name).startswith("-:") for name in rules):
        raise not_known("gptq with dynamic rules that change bits or groups",
                         "one format for all layers")
    return WeightFormat("gptq", bits, group_of(section, "group_size"),
                        lm_head=bool(section.get("lm_head")), ignored=tuple(map(str, rules)),
                        symmetric=section.get("sym") is not False)


def integer(section: Config, *names: str) -> int:
    value = next((section[name] for name in names if name in section), None)
    if type(value) is not int:
        raise bad_field(names[0], "an integer", value)
    return value


def group_of(section: Config, *names: str) -> int:
    value = integer(section, *names)
    if value != -1 and value <= 0:
        raise bad_field(names[0], "a positive integer or -1", value)
    return value


def block_of(value: Any) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(
            type(size) is int and size > 0 for size in value):
        return value[0], value[1]
    raise bad_field("weight block", "two positive integers", value)


def names_of(section: Config, *fields: str) -> tuple[str, ...]:
    value = next((section[name] for name in fields if section.get(name)), ())
    return tuple(str(name) for name in value) if isinstance(value, (list, tuple)) else ()


def bad_field(field: str, wanted: str, found: Any) -> CheckpointError:
    return CheckpointError(f"quantization_config: {field}", wanted=wanted,
                           found="nothing" if found is None else repr(found)[:80])
