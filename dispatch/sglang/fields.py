"""Fields of a quantization config, read as every SGLang config class reads them
(layers/quantization/base_config.py:QuantizationConfig.get_from_keys)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError

Config = Mapping[str, Any]
SOURCE = "layers/quantization/base_config.py:QuantizationConfig.get_from_keys"


def need(config: Config, *keys: str) -> Any:
    """Return the value of the first of the keys that the config has; refuses where it has none."""
    for key in keys:
        if key in config:
            return config[key]
    raise refuse("config fields", "ValueError", f"Cannot find any of {[*keys]} in the model's "
                 "quantization config.", None, SOURCE,
                 hint=f"quantization_config: add {keys[0]}.")


def is_fp8_scheme(scheme: Config) -> bool:
    """Return whether a scheme of ModelOpt's flat configs means FP8."""
    return bool(scheme.get("type") == "float" and scheme.get("num_bits") == 8)


def given(config: Config, *keys: str, default: Any = None) -> Any:
    """Return the value of the first of the keys that the config has, else the default."""
    return next((config[key] for key in keys if key in config), default)


def names(value: Any, field: str) -> tuple[str, ...]:
    """Return a list of names; none for null. Raises CheckpointError for anything else."""
    if value is None:
        return ()
    if isinstance(value, Sequence) and not isinstance(value, str) and all(
            isinstance(name, str) for name in value):
        return tuple(value)
    raise CheckpointError(f"quantization config: {field}", wanted="a list of names",
                          found=repr(value)[:60])


def sub(config: Config, field: str) -> Config:
    """Return the object in a field; an empty one for null. Raises CheckpointError for others."""
    value = config.get(field)
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise CheckpointError(f"quantization config: {field}", wanted="an object",
                          found=repr(value)[:60])


def whole(value: Any, field: str) -> int:
    """Return a whole number. Raises CheckpointError for anything else."""
    if type(value) is int:
        return value
    raise CheckpointError(f"quantization config: {field}", wanted="a whole number",
                          found=repr(value)[:60])
