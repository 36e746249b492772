"""The package humming's own reading of a layer's quantization config (humming/schema/): weights and
activations, or what its classes raise. `Fault` stands for that exception until the layer is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.humming_numbers import Weight
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Config = Mapping[str, Any]
Rules = Mapping[str, Any]


class Fault(Exception):  # noqa: N818 - the engine's exception, not one of ours
    """What the package raises: an exception type and its words."""

    def __init__(self, kind: str, message: str = "") -> None:
        self.kind, self.message = kind, message
        super().__init__(message)


MODEL = "model"
"""Stands for the dtype that the model is served in."""


class Scales(NamedTuple):
    """The scales of weights: one per group, channel, block or tensor; `rows` of a block, their
    number format (None: not given), and those of the second level (none, tensor, channel)."""

    kind: str | None = "group"
    rows: int = 0
    dtype: str | None = MODEL
    second: str = "none"
    hadamard: int = 0
    fp_zero_point: bool = False


class Stored(NamedTuple):
    """Weights as a schema stores them; `grouped` says which dimension of the scales comes first
    where they are divided into groups: k, n, or None for no groups. `late` is raised when the
    tensors are made, not when the schema is; `ordered` groups (by activation) when they are
    turned into the package's own form (GPTQWeightSchema.to_humming_schema)."""

    weight: Weight
    group: int = 0
    grouped: str | None = None
    late: Fault | None = None
    scales: Scales = Scales()
    ordered: bool = False


def weight_schema(rules: Rules, config: Config) -> Stored:
    """Return the weights of a layer's config (BaseWeightSchema.from_config)."""
    method = config["quant_method"]
    if method not in rules["weight_schemas"]:
        raise Fault("ValueError", f"unsupported weight quant_method: {method}".rstrip())
    row = rules["weight_schemas"][method]
    return WEIGHTS[method]({**row.get("given", {}), **fields_of(row, config)})


def check_sizes(stored: Stored, n: int, k: int, experts: tuple[int, ...] = ()) -> None:
    """Raise what making the tensors of one rank raises; `experts` is their number, in front."""
    if stored.late is not None:
        raise stored.late
    if stored.grouped and stored.group == 0:
        raise Fault("ZeroDivisionError", "integer division or modulo by zero")
    if stored.grouped and stored.group < 0:
        groups = k // stored.group
        shape = [groups, n] if stored.grouped == "k" else [n, groups]
        raise Fault("RuntimeError", f"Trying to create tensor with negative dimension {groups}: "
                    f"{[*experts, *shape]}")


def fields_of(schema: Rules, config: Config) -> dict[str, Any]:
    """Return the fields of a schema class that a config has, under their own names."""
    aliases = schema.get("aliases", {})
    found = {}
    for name in (*schema.get("required", ()), *schema.get("optional", ())):
        key = next((k for k in (name, *aliases.get(name, ())) if k in config), None)
        if key is not None:
            found[name] = config[key]
    missing = [name for name in schema.get("required", ()) if name not in found]
    if missing:
        raise Fault("TypeError", f"{schema['class']}.__init__() missing {len(missing)} required "
                    f"keyword-only argument{'s' * (len(missing) > 1)}: {_listed(missing)}")
    return found


def _listed(names: list[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return ", ".join(quoted[:-1]) + f", and {quoted[-1]}"


def _gptq(found: Config) -> Stored:
    weight = Weight(f"uint{found['bits']}", max(found["group_size"], 0), None,
                    not found.get("sym", True))
    return Stored(weight, found["group_size"], "k", scales=_integer_scales(found),
                  ordered=bool(found.get("desc_act")))


def _integer_scales(found: Config) -> Scales:
    size = found["group_size"]
    return Scales("group" if size > 0 else "channel" if size == 0 else None)


def _awq(found: Config) -> Stored:
    weight = Weight(f"uint{found['bits']}", max(found["group_size"], 0), None,
                    bool(found.get("zero_point", True)))
    return Stored(weight, found["group_size"], "k", scales=_integer_scales(found))


def _fp8(found: Config) -> Stored:
    block = found.get("weight_block_size")
    return Stored(Weight("float8e4m3", block[1] if block else 0), scales=Scales(
        "block" if block else "tensor", block[0] if block else 0, "float32"))


def _auto_round(found: Config) -> Stored:
    kind, packing = found.get("data_type", "int"), found.get("packing_format",
                                                             "auto_round:auto_gptq")
    if kind != "int" or any(tag in packing for tag in ("fp8", "nvfp", "mxfp", "nv_fp", "mx_fp")):
        raise Fault("AssertionError",
                    "autoround fp quantization is not supported by humming "
                    f"(data_type={kind!r}, packing_format={packing!r}); only weight-only int "
                    "quantization is supported")
    if found.get("act_bits", 16) < 16:
        raise Fault("AssertionError", f"autoround act_bits={found['act_bits']} (activation "
                    "quantization) is not supported by humming")
    if "awq" in packing:
        return _awq({**found, "zero_point": not found.get("sym", True)})
    if "gptq" in packing or "auto_round" in packing:
        return _gptq(found)
    raise Fault("ValueError", f"unsupported autoround packing_format: {packing!r}")


PACKED = {"nvfp4-pack-quantized": ("float4e2m1", "float8e4m3"),
          "mxfp4-pack-quantized": ("float4e2m1", "float8e8m0")}
"""Format of a compressed-tensors config -> weights and scales, where both follow from it."""
WHOLE_BYTES = ("int-quantized", "float-quantized", "naive-quantized")


def _compressed(found: Config) -> Stored:
    check_format(found)
    if found.get("actorder") not in (None, "weight", "static"):
        raise Fault("AssertionError", "actorder is not supported by humming")
    late = _compressed_fault(found, found["strategy"])
    group = _compressed_group(found) if late is None else 0
    whole = f"uint{found['num_bits']}" if found["type"] == "int" else "float8e4m3"
    dtype, scale = PACKED.get(found["format"], (whole, None))
    weight = Weight(dtype, max(group, 0), scale, not found.get("symmetric", True))
    return Stored(weight, group, "n" if "group" in found["strategy"] else None, late,
                  _compressed_scales(found, scale))


def _compressed_scales(found: Config, scale: str | None) -> Scales:
    strategy = found["strategy"]
    if strategy == "block":
        return Scales("block", int((found.get("block_structure") or (0,))[0]), "float32")
    return Scales("group" if "group" in strategy else strategy, dtype=scale or MODEL,
                  second="tensor" if found["format"] == "nvfp4-pack-quantized" else "none")


def check_format(found: Config) -> None:
    """Raise what the constructors of compressed-tensors' schemas raise for another format."""
    if found["format"] not in (*WHOLE_BYTES, "pack-quantized", *PACKED):
        raise Fault("AssertionError")


def _compressed_fault(found: Config, strategy: str) -> Fault | None:
    """Return what making the tensors raises (CompressedTensorsWeightSchema.get_tensors_attrs, and
    the engine's parameter classes where packed scales have no groups)."""
    missing = {"block": "block_structure"}.get(strategy, "group_size" if "group" in strategy
                                               else "format")
    if (found["format"] in WHOLE_BYTES and found["num_bits"] != 8) or found.get(missing) is None:
        return Fault("AssertionError")
    if strategy not in ("block", "channel", "tensor") and "group" not in strategy:
        return Fault("ValueError", f"unsupported compressed-tensors strategy: {strategy}")
    if not found.get("symmetric", True) and strategy not in ("group", "channel"):
        return Fault("AssertionError")
    if "pack" in found["format"] and strategy in ("channel", "tensor"):
        parts = {"channel": ("RowvLLMParameter", "input_dim"),
                 "tensor": ("_ColumnvLLMParameter", "output_dim")}[strategy]
        return Fault("TypeError", f"{parts[0]}.__init__() missing 1 required positional "
                     f"argument: '{parts[1]}'")
    return None


def _compressed_group(found: Config) -> int:
    if "group" in found["strategy"]:
        return int(found["group_size"])
    return int(found["block_structure"][1]) if found["strategy"] == "block" else 0


def _modelopt(found: Config) -> Stored:
    algo = found["quant_algo"].lower()
    known = {"nvfp4": Weight("float4e2m1", 16, "float8e4m3"),
             "mxfp8": Weight("float8e4m3", 32, "float8e8m0")}
    if algo not in known:
        raise Fault("ValueError", f"unsupported modelopt algo: {algo}")
    return Stored(known[algo], scales=Scales(
        dtype=known[algo].scale, second="tensor" if algo == "nvfp4" else "none"))


def _mxfp4(found: Config) -> Stored:
    return Stored(Weight("float4e2m1", 32, "float8e8m0"), scales=Scales(dtype="float8e8m0"))


def _bitnet(found: Config) -> Stored:
    return Stored(Weight(found.get("format", "float2e0m1")), scales=Scales("tensor"))


def _quark(found: Config) -> Stored:
    raise NotKnownError("a quark config of one layer under --quantization humming",
                        hint="Quark writes none for a whole model.")


def _own(found: Config) -> Stored:
    dtype, group = number_format(found["b_dtype"]), count(found, "weight_scale_group_size")
    scale = found.get("bs_dtype")
    kind = _scale_type(found, group)
    _check_second_scale(found, kind)
    zero = bool(found.get("has_zero_point"))
    rows = count(found, "weight_scale_group_size_n")
    gap = zero and not found.get("is_fp_zero_point") and kind not in ("group", "channel")
    late = Fault("AssertionError") if gap else Fault(
        "ZeroDivisionError", "integer division or modulo by zero") if kind == "block" and (
        not rows) else None
    weight = Weight(dtype, max(group, 0) if kind != "tensor" else 0,
                    number_format(scale) if scale else None, zero)
    return Stored(weight, group, late=late, scales=Scales(
        kind, rows,
        "float32" if kind == "block" else weight.scale, found.get("weight_scale_2_type") or "none",
        int(found.get("hadamard_block_size") or 0), bool(found.get("is_fp_zero_point"))))


def count(found: Config, name: str) -> int:
    """Return a whole number of a config, 0 where it is absent; what is none is compared with one
    by the package, which raises."""
    value = found.get(name, 0)
    if not isinstance(value, int):
        raise Fault("TypeError", f"'>' not supported between instances of "
                    f"'{type(value).__name__}' and 'int'")
    return value


def _scale_type(found: Config, group: int) -> str | None:
    kind = found.get("weight_scale_type")
    if kind is None:
        if count(found, "weight_scale_group_size_n") > 1:
            return "block"
        return "channel" if group == 0 else "group" if group > 0 else None
    if kind not in ("group", "block", "channel", "tensor"):
        raise Fault("ValueError", f"{kind!r} is not a valid WeightScaleType")
    return str(kind)


def _check_second_scale(found: Config, kind: str | None) -> None:
    second = found.get("weight_scale_2_type") or "none"
    if second not in ("none", "channel", "tensor"):
        raise Fault("ValueError", f"{second!r} is not a valid WeightScale2Type")
    if second != "none" and kind != "group" and not (kind == "channel" and second == "tensor"):
        raise Fault("AssertionError", "secondary scales require group scales or channel scales "
                    "with a tensor secondary scale")


def number_format(name: Any) -> str:
    """Return a number format as the package spells it, or raise what its parser raises."""
    text = str(name).lower()
    if "float" in str(name):
        if text in ("half", "float16", "bfloat16", "float32"):
            return "float16" if text == "half" else text
        parts = re.fullmatch(r"float(\d+)_*e(\d+)m(\d+)", text)
        if not parts:
            raise Fault("ValueError", f"invalid floating point dtype: {text}")
        if int(parts[1]) - int(parts[2]) - int(parts[3]) not in (0, 1):
            raise Fault("AssertionError")
        return f"float{parts[1]}e{parts[2]}m{parts[3]}"
    if "int" in str(name):
        parts = re.fullmatch(r"(u*)int(\d+)", text)
        if not parts:
            raise Fault("ValueError", f"invalid integer dtype: {text}")
        return text
    raise Fault("NotImplementedError")


WEIGHTS: Mapping[str, Callable[[Config], Stored]] = {
    "gptq": _gptq, "awq": _awq, "fp8": _fp8, "auto-round": _auto_round, "auto_round": _auto_round,
    "compressed-tensors": _compressed, "modelopt": _modelopt, "mxfp4": _mxfp4,
    "gpt_oss_mxfp4": _mxfp4, "bitnet": _bitnet, "quark": _quark, "humming": _own,
}
