"""quant_method auto-round: INCConfig, its fields and what its constructor refuses
(model_executor/layers/quantization/inc/inc.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.fields import Config, bad_config, need
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]
Group = int | tuple[int, int]
SOURCE = "model_executor/layers/quantization/inc/inc.py:INCConfig"
GROUP_SOURCE = (
    "model_executor/layers/quantization/inc/config_parser.py:INCConfigParser._normalize_group_size")


class IncFields(NamedTuple):
    """INCConfig after construction; no `blocks` stand for every module but lm_head."""

    bits: int
    group: Group
    sym: Any
    packing: str
    backend: str
    data_type: str
    blocks: tuple[str, ...]
    extra: Mapping[str, Mapping[str, Any]]


def check(config: Config) -> Config:
    """Return the config: the types of its fields are checked where each is read."""
    return config


def read(config: Config, context: Context) -> IncFields:
    """Return the fields of an AutoRound checkpoint, or refuse as INCConfig.from_config does."""
    rules = context.table["inc"]
    data_type = rules["data_type_aliases"].get(_text(config, "data_type", "int"),
                                               config.get("data_type", "int"))
    bits, group = need(config, "bits"), group_size(need(config, "group_size"))
    packing = config.get("packing_format") or None
    fields = IncFields(
        bits, group, config.get("sym", True), packing or _packing(rules, data_type, bits, group),
        _text(config, "backend", _text(config, "vllm_backend", "auto")), data_type,
        _blocks(config), _extra(config))
    _check_known(rules, fields)
    _check_kind(rules, fields)
    _check_activations(rules, fields, config)
    return fields


def _text(config: Config, name: str, default: str) -> str:
    value = config.get(name, default)
    if not isinstance(value, str):
        raise CheckpointError(f"quantization config: {name}", wanted="text",
                              found=repr(value)[:60])
    return value


def group_size(value: Any) -> Group:
    """Return a group size as the engine normalises it, or refuse it."""
    if isinstance(value, (list, tuple)):
        if len(value) != 2 or not all(isinstance(size, int) for size in value):
            raise bad_config("INC block-wise FP8 requires group_size to be a 2-D integer sequence, "
                             f"but found {value!r}.", GROUP_SOURCE)
        return (value[0], value[1])
    if not isinstance(value, int):
        raise bad_config("INC group_size must be an int or a 2-D integer sequence, but found "
                         f"{type(value).__name__}.", GROUP_SOURCE)
    return value


def _packing(rules: Row, data_type: str, bits: Any, group: Group) -> str:
    packing = rules["default_packing"]
    if data_type == "fp" and bits == 8 and isinstance(group, tuple):
        return str(packing["fp"])
    return str(packing["mx_fp" if "mx_fp" in data_type else "int"])


def _blocks(config: Config) -> tuple[str, ...]:
    name = next((n for n in ("block_name_to_quantize", "to_quant_block_names") if n in config), "")
    value = config.get(name)
    if isinstance(value, str):
        return tuple(value.split(","))
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"quantization config: {name}", wanted="a list of names",
                              found=repr(value)[:60])
    return tuple(value)


def _extra(config: Config) -> Mapping[str, Mapping[str, Any]]:
    value = config.get("extra_config")
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise CheckpointError("quantization config: extra_config",
                              wanted="an object of objects", found=repr(value)[:60])
    return value


def _check_known(rules: Row, fields: IncFields) -> None:
    mx = "mx_fp" in fields.data_type
    for name, value, known, free in (
            ("weight_bits", fields.bits, rules["bits"], False),
            ("data_type", fields.data_type, rules["data_types"], mx),
            ("packing_format", fields.packing, rules["packings"], False),
            ("backend", fields.backend, rules["backends"], False)):
        if value not in known and not free:
            listed = "{" + ", ".join(map(repr, known)) + "}"
            raise bad_config(f"Unsupported {name}: {value}, currently only support {listed}.",
                             SOURCE, hint="The engine lists them in no certain order.")


def _check_kind(rules: Row, fields: IncFields) -> None:
    """Refuse what the kind of number does not go with; data types such as mx_fp4e2m1 are not
    looked at (INCConfig._validate_supported_quantization)."""
    kind = rules["kinds"].get(fields.data_type)
    if kind is None:
        return
    name, bits = kind["name"], kind["bits"]
    if fields.bits not in bits:
        listed = " or ".join(f"bits={n}" for n in bits)
        raise bad_config(f"{name} only supports {listed}, but found bits={fields.bits}.", SOURCE)
    _check_group(kind, fields)
    if kind["symmetric"] and not fields.sym:
        raise bad_config(f"{name} only supports symmetric weights.", SOURCE)
    if fields.packing not in kind["packings"]:
        raise bad_config(kind["bad_packing"].replace("{found}", repr(fields.packing)), SOURCE)
    if kind["backend"] not in (None, fields.backend):
        raise bad_config(f"{name} only supports backend={kind['backend']!r}, but found "
                         f"backend={fields.backend!r}.", SOURCE)


def _check_group(kind: Row, fields: IncFields) -> None:
    wanted, pair = kind["group"], isinstance(fields.group, tuple)
    good = {"scalar": not pair, "pair": pair}.get(wanted, fields.group == wanted)
    if not good:
        raise bad_config(kind["bad_group"].replace("{found}", repr(fields.group)), SOURCE)


def _check_activations(rules: Row, fields: IncFields, config: Config) -> None:
    """Refuse activations other than those of the one scheme that each kind has
    (INCConfig._validate_raw_config)."""
    mxfp8 = "mx_fp" in fields.data_type and fields.bits == 8
    kind = rules["activations"].get("mxfp8" if mxfp8 else fields.data_type)
    if kind is None:
        return
    group = fields.group[0] if isinstance(fields.group, tuple) else fields.group
    for name, value in kind["fields"].items():
        wanted = group if value == "group" else value
        found = config.get(name, wanted)
        if found != wanted:
            raise bad_config(f"{kind['name']} only supports {name}={wanted!r}, but found "
                             f"{name}={found!r}.", SOURCE)
