"""Reading a quantization config's fields as the engine's constructors do, with its own errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.vllm.context import refuse

Config = Mapping[str, Any]


def need(config: Config, *names: str) -> Any:
    """Return the first of `names` that the config has, or refuse as get_from_keys does."""
    for name in names:
        if name in config:
            return config[name]
    listed = "[" + ", ".join(repr(name) for name in names) + "]"
    raise bad_config(f"Cannot find any of {listed} in the model's quantization config.",
                     "model_executor/layers/quantization/base_config.py:"
                     "QuantizationConfig.get_from_keys")


def bad_config(message: str, source: str, hint: str | None = None) -> Exception:
    """Return the refusal of a config's contents; the user sees pydantic's ValidationError."""
    return refuse("config fields", "ValidationError", message, None, source, hint)


def names(config: Config, *fields: str) -> Sequence[str]:
    """Return the first non-empty list of names among `fields`, or an empty one."""
    for field in fields:
        if config.get(field):
            return [str(item) for item in _flat(config[field])]
    return []


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in _flat(part)]
    return [value]
