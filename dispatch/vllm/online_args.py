"""--quantization-config, and what the shorthands of --quantization stand for
(config/quantization.py:resolve_quantization_config)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.config_file import kind
from quantplan.dispatch.expressions import compiled
from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Table
from quantplan.tables.errors import CheckpointError, UsageError
from quantplan.tables.record import NamedTuple

OPTION = "--quantization-config"
SOURCE = "config/quantization.py:QuantizationConfigArgs"


class Spec(NamedTuple):
    """What one kind of layer becomes: ids of online_keys."""

    weight: str | None = None
    activation: str | None = None


class OnlineArgs(NamedTuple):
    """What to quantize while the checkpoint loads: by kind of layer, or by name."""

    linear: Spec | None = None
    moe: Spec | None = None
    ignore: tuple[str, ...] = ()
    targets: Mapping[str, str] | None = None


def given_args(table: Table, deployment: Deployment) -> OnlineArgs | None:
    """Return --quantization-config, with the shorthand that --quantization names beneath it; None
    where neither is given. Raises UsageError for what is no such config, and refuses names that
    the engine does not have."""
    row = _shorthands(table).get(deployment.quantization or "")
    if deployment.quantization_config is None:
        return None if row is None or row.get("deferred") else _shorthand(row)
    return _over(table, read(table, deployment.quantization_config), row)


def served_args(table: Table, name: str, given: OnlineArgs | None) -> OnlineArgs | None:
    """Return what OnlineQuantizationConfig is made from under the method `name`; None for nothing.
    """
    row = table["online_methods"].get(name)
    if row is None:
        return given
    if given is None:
        return _shorthand(row)
    return _over(table, given, row if row.get("late") else None)


def check_some(args: OnlineArgs) -> None:
    """Refuse args that name nothing to quantize."""
    if args.linear is None and args.moe is None and args.targets is None:
        raise refuse("config fields", "ValidationError",
                     "OnlineQuantizationConfig requires at least one of "
                     "quantization_config.linear, quantization_config.moe, or "
                     "quantization_config.targets to be set.", None,
                     "model_executor/layers/quantization/online/base.py:OnlineQuantizationConfig",
                     hint=f"{OPTION} '{{\"linear\": \"fp8_per_tensor\"}}', or drop it.")


def read(table: Table, given: Mapping[str, Any]) -> OnlineArgs:
    """Return the config that `given` spells."""
    unknown = next((name for name in given if name not in OnlineArgs._fields), None)
    if unknown is not None:
        raise _unreadable(str(unknown), "one of " + ", ".join(OnlineArgs._fields), given[unknown])
    args = OnlineArgs(_spec(table, "linear", given.get("linear")),
                      _spec(table, "moe", given.get("moe")), _ignore(given.get("ignore", [])),
                      _targets(table, given.get("targets")))
    _check_exclusive(table, args)
    return args


def _shorthands(table: Table) -> dict[str, Mapping[str, Any]]:
    return {name: row for name, row in table["online_methods"].items() if not row.get("late")}


def _shorthand(row: Mapping[str, Any]) -> OnlineArgs:
    linear, experts = (Spec(row[layer]) if layer in row else None
                       for layer in ("linear", "experts"))
    return OnlineArgs(linear, experts)


def _over(table: Table, args: OnlineArgs, row: Mapping[str, Any] | None) -> OnlineArgs:
    """Return `args` with what they leave open from the shorthand of `row`."""
    if row is None:
        return args
    base = _shorthand(row)
    merged = args._replace(linear=args.linear or base.linear, moe=args.moe or base.moe,
                           targets=args.targets or None)
    _check_exclusive(table, merged)
    return merged


def _spec(table: Table, field: str, value: Any) -> Spec | None:
    if value is None:
        return None
    if isinstance(value, str):
        row = _shorthands(table).get(value)
        return Spec(_key(table, value)) if row is None else _short_spec(row, field)
    if not isinstance(value, Mapping) or not set(value) <= set(Spec._fields):
        raise _unreadable(field, "a name, or weight and activation", value)
    return Spec(*(_key(table, value.get(side)) for side in Spec._fields))


def _short_spec(row: Mapping[str, Any], field: str) -> Spec:
    layer = "experts" if field == "moe" else field
    if layer not in row:
        raise _refused(f"online shorthand '{row['id']}' does not define a {field} spec")
    return Spec(row[layer])


def _key(table: Table, name: Any) -> str | None:
    """Return the quantization key that a config names."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise _refused(f"expected str or QuantKey, got {type(name).__name__}", "TypeError")
    named = {row["name"]: row["id"] for row in table["online_keys"].values() if "name" in row}
    if name not in named:
        raise _refused(f"unknown quantization name {name!r}; expected one of {sorted(named)}")
    return str(named[name])


def _ignore(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise _unreadable("ignore", "a list of names", value)
    for entry in value:
        _check_pattern(entry)
    return tuple(value)


def _targets(table: Table, value: Any) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _refused(f"targets must be a dict, got {type(value).__name__}", "TypeError")
    shorthands = _shorthands(table)
    for pattern, shorthand in value.items():
        if not isinstance(pattern, str):
            raise _refused(f"targets keys must be strings, got {type(pattern).__name__}")
        if not isinstance(shorthand, str) or shorthand not in shorthands:
            raise _refused(f"targets[{pattern}] = {shorthand} is not a valid online shorthand "
                           f"name; expected one of {sorted(shorthands)}")
        _check_pattern(pattern)
    return value


def _check_pattern(entry: str) -> None:
    if entry.startswith("re:"):
        try:
            compiled(entry[3:])
        except CheckpointError as error:
            raise UsageError(f"{OPTION}: pattern {entry[:60]!r}", wanted=error.wanted,
                             found=error.found) from None


def _check_exclusive(table: Table, args: OnlineArgs) -> None:
    if args.targets is not None and (args.linear is not None or args.moe is not None):
        linear, moe = (None if spec is None else told(table, spec.weight)
                       for spec in (args.linear, args.moe))
        raise _refused("quantization_config.targets is mutually exclusive with "
                       f"quantization_config.linear/moe, got targets={dict(args.targets)}, "
                       f"linear={linear}, moe={moe}.")


def told(table: Table, key: str | None) -> str:
    """Return a quantization key as the engine prints a spec: its name, else its text."""
    if key is None:
        return "None"
    return str(table["online_keys"][key].get("name", table["quant_keys"][key]))


def _refused(message: str, kind: str = "ValidationError") -> Exception:
    return refuse("flags", kind, message, None, SOURCE)


def _unreadable(field: str, wanted: str, found: Any) -> UsageError:
    return UsageError(f"{OPTION}: {field}", wanted=wanted, found=kind(found))
