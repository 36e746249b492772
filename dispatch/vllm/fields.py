"""Reading a quantization config's fields as the engine's constructors do, with its own errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError

Config = Mapping[str, Any]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _flag(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int))


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _object(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _sizes(value: Any) -> bool:
    return value is None or (isinstance(value, list)
                             and all(_whole(n) and n > 0 for n in value))


KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("bits", "w_bit", "group_size", "q_group_size"), ("a whole number", _whole)),
    **dict.fromkeys(("sym", "desc_act", "lm_head"), ("true or false", _flag)),
    "zero_point": ("true or false", lambda value: value is not None and _flag(value)),
    "ignore": ("a list of names", lambda value: isinstance(value, list)),
    **dict.fromkeys(("activation_scheme", "format"), ("text", _text)),
    **dict.fromkeys(("dynamic", "config_groups", "sparsity_config"), ("an object", _object)),
    "weight_block_size": ("a list of positive whole numbers", _sizes),
}
"""Field -> what its value must be, in words and as a test. Another type makes the engine crash or
take it for something else; no answer can be right."""


def check_kinds(config: Config) -> Config:
    """Return `config`; CheckpointError when a field of its (or of a dynamic rule) has a wrong
    type."""
    rules = config.get("dynamic")
    inner = rules.items() if isinstance(rules, Mapping) else ()
    for place, fields in (("", config), *((f"dynamic: {pattern}: ", rule) for pattern, rule in inner
                                          if isinstance(rule, Mapping))):
        for name, value in fields.items():
            wanted, fits = KINDS.get(name, ("", None))
            if fits and not fits(value):
                raise CheckpointError(f"quantization config: {place}{name}", wanted=wanted,
                                      found=repr(value)[:60])
    return config


def need(config: Config, *names: str) -> Any:
    """Return the first of `names` that the config has, or refuse as get_from_keys does."""
    for name in names:
        if name in config:
            return config[name]
    listed = "[" + ", ".join(repr(name) for name in names) + "]"
    raise bad_config(f"Cannot find any of {listed} in the model's quantization config.",
                     "model_executor/layers/quantization/base_config.py:"
                     "QuantizationConfig.get_from_keys",
                     f"Add {names[0]} to the quantization config, as its quantizer writes it.")


def bad_config(message: str, source: str, hint: str | None = None) -> Exception:
    """Return the refusal of a config's contents; the user sees pydantic's ValidationError."""
    return refuse("config fields", "ValidationError", message, None, source, hint)


def names(config: Config, *fields: str, nested: bool = False) -> tuple[str, ...]:
    """Return the first non-empty list of names among `fields`, or an empty one; lists of lists are
    read where `nested`. Raises CheckpointError for what is no list of names: the engine walks text
    letter by letter, or crashes."""
    for field in fields:
        value = config.get(field)
        if value:
            found = list(_flat(value)) if nested and isinstance(value, list) else value
            if not isinstance(found, list) or not all(isinstance(n, str) for n in found):
                raise CheckpointError(f"quantization config: {field}", wanted="a list of names",
                                      found=repr(value)[:60])
            return tuple(found)
    return ()


def _flat(value: Any) -> Iterator[Any]:
    if not isinstance(value, list):
        yield value
        return
    for part in value:
        yield from _flat(part)
