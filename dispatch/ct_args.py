"""QuantizationArgs of compressed-tensors: defaults, validation and its printed form
(compressed_tensors 0.17.0 quantization/quant_args.py:QuantizationArgs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.torch_dtypes import printed
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

SOURCE = "compressed_tensors 0.17.0 quantization/quant_args.py:QuantizationArgs"
STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group", "attn_head")
ARGUMENTS = ("type", "num_bits", "strategy", "symmetric", "group_size", "scale_dtype")
"""The arguments that choose a scheme."""
GROUPED = ("group", "tensor_group")
DYNAMIC = ("token", "tensor", "tensor_group", "group")
FIELDS = ("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic",
          "actorder", "scale_dtype", "zp_dtype", "observer", "observer_kwargs")


class Default(str):
    """A value that the checkpoint does not give: the engine prints it as a member of its enum."""

    enum: str

    def __new__(cls, value: str, enum: str) -> Default:
        """Return `value`, printed as a member of `enum`."""
        member = super().__new__(cls, value)
        member.enum = enum
        return member

    def __repr__(self) -> str:
        """Return Python's own form of an enum member."""
        return f"<{self.enum}.{self.upper()}: '{self}'>"


INT = Default("int", "QuantizationType")


def strategy_member(name: str) -> Default:
    """Return a strategy as the engine infers it."""
    return Default(name, "QuantizationStrategy")


class Args(NamedTuple):
    """One validated QuantizationArgs; `strategy` is inferred from group_size when absent."""

    num_bits: int = 8
    type: str = INT
    symmetric: bool = True
    group_size: int | None = None
    strategy: str | None = None
    block_structure: list[int] | None = None
    dynamic: bool | str = False
    actorder: str | None = None
    scale_dtype: str | None = None
    zp_dtype: str | None = None
    observer: str | None = None
    observer_kwargs: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        """Return the text that the engine prints for it in "no scheme" errors."""
        return f"QuantizationArgs({', '.join(self._shown())})"

    def __str__(self) -> str:
        """Return the text that the engine prints for it in the block errors."""
        return " ".join(self._shown())

    def _shown(self) -> list[str]:
        return [f"{name}={value if name.endswith('_dtype') else repr(value)}"
                for name, value in zip(FIELDS, self, strict=True)]


def read_args(raw: Any, where: str) -> Args | None:
    """Return the arguments of one config-group entry, None when absent.

    Raises CheckpointError for a wrong type or an unknown key or value, Refusal where the engine's
    own validator raises a known message.
    """
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"quantization_config: {where}", wanted="an object", found=repr(raw))
    unknown = [key for key in raw if key not in FIELDS]
    if unknown:
        raise CheckpointError(f"quantization_config: {where}: unknown field {unknown[0]!r}",
                              wanted="one of " + ", ".join(FIELDS))
    args = Args(
        num_bits=_typed(raw, "num_bits", int, 8, where),
        type=_member(raw, "type", where) or INT,
        symmetric=_typed(raw, "symmetric", bool, True, where),
        group_size=_group_size(_typed(raw, "group_size", int, None, where)),
        strategy=_member(raw, "strategy", where),
        block_structure=_block(raw.get("block_structure"), where),
        dynamic=_member(raw, "dynamic", where, (bool, str)) or False,
        actorder=_actorder(raw, where),
        scale_dtype=_dtype(raw, "scale_dtype", where),
        zp_dtype=_dtype(raw, "zp_dtype", where),
        observer=_typed(raw, "observer", str, None, where),
        observer_kwargs=_typed(raw, "observer_kwargs", Mapping, {}, where),
    )
    return _finish(args)


def _invalid(message: str) -> Exception:
    """Return the refusal of the arguments; the user sees pydantic's ValidationError."""
    return refuse("config fields", "ValidationError", message, None, SOURCE)


def _typed(raw: Mapping[str, Any], name: str, kind: Any, default: Any, where: str) -> Any:
    value = raw.get(name)
    if value is None and (name not in raw or name in NULLABLE):
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CheckpointError(f"quantization_config: {where}: {name}", wanted=WORDS[kind],
                              found=repr(value)[:60])
    return value


NULLABLE = ("group_size", "strategy", "block_structure", "actorder", "scale_dtype", "zp_dtype",
            "observer")
WORDS = {int: "a whole number", str: "text", bool: "true or false", Mapping: "an object",
         (bool, str): "true, false or text"}


ENUMS = {
    "type": ("QuantizationType", ("int", "float")),
    "strategy": ("QuantizationStrategy", STRATEGIES),
    "dynamic": ("DynamicType", ("local",)),
    "actorder": ("ActivationOrdering", ("group", "weight", "dynamic", "static")),
}
"""Field -> the engine's enum that its text must name a member of."""


def _member(raw: Mapping[str, Any], name: str, where: str, kind: Any = str) -> Any:
    """Return a field of ENUMS in lower case, or what else `kind` allows; None when absent."""
    value = _typed(raw, name, kind, None, where)
    if not isinstance(value, str):
        return value
    enum, members = ENUMS[name]
    if value.lower() not in members:
        raise _invalid(f"{value.lower()!r} is not a valid {enum}")
    return value.lower()


def _actorder(raw: Mapping[str, Any], where: str) -> str | None:
    value = _member(raw, "actorder", where, (bool, str))
    return "group" if value is True else value or None


def _dtype(raw: Mapping[str, Any], name: str, where: str) -> str | None:
    value = _typed(raw, name, str, None, where)
    found = None if value is None else printed(value)
    if found is None and value is not None:
        raise _invalid(f"No such torch dtype `torch.{value.removeprefix('torch.')}`")
    return found


def _group_size(value: int | None) -> int | None:
    if value is not None and value < -1:
        raise _bad_group_size(value)
    return value


def _bad_group_size(value: int) -> Exception:
    return _invalid(f"Invalid group size {value}. Use group_size > 0 for strategy='group' and "
                    "group_size = -1 for 'channel'")


def _block(value: Any, where: str) -> list[int] | None:
    if value is None:
        return None
    parts = [_number(part) for part in value.split("x")] if isinstance(value, str) else value
    if isinstance(parts, list) and len(parts) == 2:
        block = [part for part in parts if type(part) is int and part > 0]
        if len(block) == 2:
            return block
    raise CheckpointError(f"quantization_config: {where}: block_structure",
                          wanted="a list of two positive integers", found=repr(value)[:60])


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _finish(args: Args) -> Args:
    """Return the arguments with what the engine infers; refuse what contradicts itself."""
    strategy = args.strategy or _inferred(args.group_size)
    _check_strategy(args, strategy)
    if args.group_size == 0:
        raise CheckpointError("quantization_config: config_groups: weights: group_size",
                              wanted="-1 or a positive number", found="0")
    observer = args.observer
    if args.dynamic:
        _check_dynamic(args, strategy)
        observer = None if args.dynamic is True else observer or "minmax"
    elif observer is None:
        observer = "memoryless_minmax"
    return args._replace(strategy=strategy, zp_dtype=args.zp_dtype or _zero_point_dtype(args),
                         observer=observer)


def _inferred(group_size: int | None) -> str:
    if group_size == 0:
        raise _bad_group_size(group_size)
    if group_size is None:
        return strategy_member("tensor")
    return strategy_member("group" if group_size > 0 else "channel")


def _check_strategy(args: Args, strategy: str) -> None:
    grouped, sized = strategy in GROUPED, args.group_size is not None and args.group_size > 0
    blocks = args.block_structure is not None
    rules = (
        (strategy == "token" and not args.dynamic,
         "Cannot perform static token quantization, please use `dynamic=True`"),
        (grouped and not sized,
         f"strategy {strategy} requires group_size to be set to a positive value"),
        (sized and not grouped, "group_size requires strategy to be set to 'group'"),
        (strategy == "block" and not blocks, f"Block strategy requires block structure\n{args}"),
        (blocks and strategy != "block", f"Block structure requires block strategy\n{args}"),
        (args.actorder in ("group", "dynamic") and not grouped,
         "Must use group or tensor_group quantization strategy in order to apply group activation "
         "ordering"),
    )
    _refuse_first(rules)


def _check_dynamic(args: Args, strategy: str) -> None:
    listed = ", ".join(repr(strategy_member(name)) for name in DYNAMIC)
    _refuse_first((
        (strategy not in DYNAMIC, f"One of ({listed}) must be used for dynamic quant."),
        (args.dynamic == "local" and strategy != "tensor_group",
         "local is only supported for strategy tensor_group"),
    ))


def _refuse_first(rules: tuple[tuple[bool, str], ...]) -> None:
    for broken, words in rules:
        if broken:
            raise _invalid(words)


def _zero_point_dtype(args: Args) -> str:
    if args.type == "float":
        if args.num_bits not in (4, 8):
            raise refuse("config fields", "NotImplementedError",
                         "Only num_bits in (8) are supported", None, SOURCE)
        return "torch.float8_e4m3fn"
    return "torch.int8" if args.num_bits <= 8 else "torch.int16" if args.num_bits <= 16 else (
        "torch.int32")


def argument_facts(part: str, args: Args | None) -> dict[str, Any]:
    """Return the facts PART.* that the `when` lines of scheme rows read; None where `args` is."""
    facts = {f"{part}.{name}": getattr(args, name, None) for name in ARGUMENTS}
    return {**facts, f"{part}.dynamic": None if args is None else bool(args.dynamic)}
