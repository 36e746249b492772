"""QuantizationArgs of compressed-tensors: defaults, validation and its printed form
(compressed_tensors 0.17.0 quantization/quant_args.py:QuantizationArgs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.vllm.fields import bad_config
from quantplan.tables.errors import CheckpointError

SOURCE = "compressed_tensors quantization/quant_args.py:QuantizationArgs"
STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group", "attn_head")
FIELDS = ("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic",
          "actorder", "scale_dtype", "zp_dtype", "observer", "observer_kwargs")


class Args(NamedTuple):
    """One validated QuantizationArgs; `strategy` is inferred from group_size when absent."""

    num_bits: int = 8
    type: str = "int"
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
        shown = ", ".join(f"{name}={self._shown(name)}" for name in FIELDS)
        return f"QuantizationArgs({shown})"

    def _shown(self, name: str) -> str:
        value = getattr(self, name)
        return str(value) if name.endswith("_dtype") else repr(value)


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
        type=str(_typed(raw, "type", str, "int", where)).lower(),
        symmetric=_typed(raw, "symmetric", bool, True, where),
        group_size=_typed(raw, "group_size", int, None, where),
        strategy=_lower(_typed(raw, "strategy", str, None, where)),
        block_structure=_block(raw.get("block_structure"), where),
        dynamic=_typed(raw, "dynamic", (bool, str), False, where),
        actorder=_actorder(raw.get("actorder")),
        scale_dtype=raw.get("scale_dtype"), zp_dtype=raw.get("zp_dtype"),
        observer=raw.get("observer"), observer_kwargs=raw.get("observer_kwargs") or {},
    )
    return _finish(args, where)


def _typed(raw: Mapping[str, Any], name: str, kind: Any, default: Any, where: str) -> Any:
    value = raw.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = getattr(kind, "__name__", "bool or str")
        raise CheckpointError(f"quantization_config: {where}: {name}", wanted=wanted,
                              found=repr(value))
    return value


def _lower(value: str | None) -> str | None:
    return value.lower() if value is not None else None


def _actorder(value: Any) -> str | None:
    if isinstance(value, bool):
        return "group" if value else None
    return value.lower() if isinstance(value, str) else None


def _block(value: Any, where: str) -> list[int] | None:
    if value is None:
        return None
    parts = value.split("x") if isinstance(value, str) else value
    try:
        block = [int(part) for part in parts]
    except (TypeError, ValueError):
        block = []
    if len(block) != 2:
        raise CheckpointError(f"quantization_config: {where}: block_structure",
                              wanted="a list of two integers", found=repr(value))
    return block


def _finish(args: Args, where: str) -> Args:
    strategy = args.strategy or _inferred(args.group_size)
    if strategy not in STRATEGIES:
        raise CheckpointError(f"quantization_config: {where}: strategy",
                              wanted="one of " + ", ".join(STRATEGIES), found=repr(strategy))
    if strategy == "token" and not args.dynamic:
        raise bad_config("Cannot perform static token quantization, please use `dynamic=True`",
                         SOURCE)
    zp_dtype = args.zp_dtype or _zero_point_dtype(args)
    observer = args.observer
    if args.dynamic is True:
        observer = None
    elif observer is None:
        observer = "minmax" if args.dynamic else "memoryless_minmax"
    return args._replace(strategy=strategy, zp_dtype=zp_dtype, observer=observer)


def _inferred(group_size: int | None) -> str:
    if group_size is None:
        return "tensor"
    return "group" if group_size > 0 else "channel"


def _zero_point_dtype(args: Args) -> str:
    if args.type == "float":
        return "torch.float8_e4m3fn"
    return "torch.int8" if args.num_bits <= 8 else "torch.int16"
