"""Strict reading of config.json and its side files, and the type checks of the fields we use."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from quantplan.dispatch.regular_file import read_bytes, shown
from quantplan.tables.errors import CheckpointError, NotKnownError, QuantplanError
from quantplan.tables.record import NamedTuple

CONFIG = "config.json"
SIDE_FILES = (
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
    "quant_model_description.json",
)
CONFIG_LIMIT_BYTES = 16 << 20
NESTING_LIMIT = 64
# Python refuses to turn longer digit strings into integers; no field of ours needs more than 19.
DIGITS_LIMIT = 400


class Bound(NamedTuple):
    """The range of an integer field, both ends allowed, whether null stands for "derived", and
    whether one number per layer may stand there."""

    low: int
    high: int
    null: bool = False
    listed: bool = False


# Upper ends are far above any published model: a larger number is a unit or typing mistake.
BOUNDS: Mapping[str, Bound] = {
    "num_hidden_layers": Bound(1, 10_000),
    "hidden_size": Bound(1, 1 << 20),
    "intermediate_size": Bound(1, 1 << 24, null=True),
    "num_attention_heads": Bound(1, 1 << 16),
    "num_key_value_heads": Bound(1, 1 << 16, null=True),
    "head_dim": Bound(1, 1 << 16, null=True),
    "vocab_size": Bound(1, 1 << 28),
    "max_position_embeddings": Bound(1, 1 << 31),
    "max_window_layers": Bound(0, 10_000, null=True),
    "sliding_window": Bound(0, 1 << 31, null=True),
    "num_experts": Bound(0, 1 << 20, null=True),
    "num_local_experts": Bound(0, 1 << 20, null=True),
    "n_routed_experts": Bound(0, 1 << 20, null=True),
    "n_shared_experts": Bound(0, 1 << 20, null=True),
    "num_experts_per_tok": Bound(0, 1 << 20, null=True),
    "moe_intermediate_size": Bound(0, 1 << 24, null=True, listed=True),
    "q_lora_rank": Bound(0, 1 << 24, null=True),
    "kv_lora_rank": Bound(0, 1 << 24, null=True),
    "qk_nope_head_dim": Bound(0, 1 << 16, null=True),
    "qk_rope_head_dim": Bound(0, 1 << 16, null=True),
    "v_head_dim": Bound(0, 1 << 16, null=True),
}
OBJECTS = ("quantization_config", "compression_config", "auto_map")
STRINGS = ("torch_dtype", "dtype", "model_type", "hidden_act")
FLAGS = ("qkv_bias", "is_causal", "tie_word_embeddings", "attention_bias", "mlp_bias",
         "use_sliding_window")


def read_json(path: str, *, limit_bytes: int = CONFIG_LIMIT_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file, or raise CheckpointError."""
    return parse_json(read_bytes(path, limit_bytes=limit_bytes), path)


def parse_json(data: bytes, file: str) -> dict[str, Any]:
    """Return the JSON object in `data`; `file` names it in errors.

    RFC 8259 in UTF-8 (a byte order mark is tolerated). Duplicate keys, NaN, numbers too large for a
    double and lone surrogates are refused: readers disagree about their meaning. Infinity is read
    as Python's json writes it: published configs hold it (time_step_limit of Nemotron-H), and no
    field of `BOUNDS` accepts it.
    """
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
        # Only an escape can smuggle a surrogate past the decoder, and no terminal can print one.
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _disputed(file, "an unpaired surrogate escape") from None
    except UnicodeDecodeError as error:
        raise _disputed(file, f"byte {data[error.start]:#04x} at {error.start}") from None
    except RecursionError:
        raise _too_deep(file) from None
    except json.JSONDecodeError as error:
        raise _not_json(file, error, empty=not text.strip()) from None
    except _RefusedError as error:
        raise _disputed(file, str(error)) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{shown(file)} is not an object", wanted="{...}", found=kind(value))
    return value


def check_config(config: Mapping[str, Any], file: str = CONFIG) -> None:
    """Raise unless every field the planner uses has a usable type and a sane value.

    Checks the top level and `text_config`. Raises CheckpointError naming file, field, wanted and
    found; NotKnownError for a field that holds one value per layer, a layout with no rule here.
    """
    check_nesting(config, file)
    _check_level(config, file, "")
    text = config.get("text_config")
    if text is not None:
        _check_level(_object(text, file, "text_config"), file, "text_config.")


def check_nesting(value: object, file: str) -> None:
    """Raise CheckpointError when containers nest deeper than a config can need."""
    level: Iterable[object] = (value,)
    for _ in range(NESTING_LIMIT):
        # Keyed by identity: a mapping from Python may contain itself.
        children = {id(child): child for node in level for child in _children(node)}
        if not children:
            return
        level = children.values()
    raise _too_deep(file)


def kind(value: object) -> str:
    """Return a JSON value in a few words: small ones verbatim, large ones by their type."""
    if isinstance(value, Mapping):
        return f"an object of {len(value)} fields"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} values"
    plain = isinstance(value, (str, int, float, type(None)))
    try:
        text = json.dumps(value, ensure_ascii=False) if plain else ascii(value)
    except ValueError:  # an integer with more digits than Python prints
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


class _RefusedError(Exception):
    """Valid for Python's parser, refused here."""


def _check_level(config: Mapping[str, Any], file: str, prefix: str) -> None:
    for field, bound in BOUNDS.items():
        if field in config:
            _check_integer(config[field], bound, file, prefix + field)
    for field in OBJECTS:
        if config.get(field) is not None:
            _object(config[field], file, prefix + field)
    for field in STRINGS:
        if not isinstance(config.get(field), (str, type(None))):
            raise _wrong(file, prefix + field, "a string", config[field])
    for field in FLAGS:
        if not isinstance(config.get(field), (bool, type(None))):
            raise _wrong(file, prefix + field, "true or false", config[field])
    _check_architectures(config.get("architectures"), file, prefix + "architectures")


def _check_integer(value: object, bound: Bound, file: str, field: str) -> None:
    if value is None and bound.null:
        return
    wanted = f"an integer from {bound.low:,} to {bound.high:,}{' or null' if bound.null else ''}"
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        if bound.listed and all(bound.low <= item <= bound.high for item in value):
            return
        raise _wrong(file, field, wanted, value, NotKnownError)
    # A boolean is an int to Python, not to JSON.
    if type(value) is not int or not bound.low <= value <= bound.high:
        raise _wrong(file, field, wanted, value)


def _check_architectures(value: object, file: str, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise _wrong(file, field, "a list of class names", value)


def _object(value: object, file: str, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(file, field, "an object", value)
    return value


def _wrong(
    file: str,
    field: str,
    wanted: str,
    value: object,
    error: type[QuantplanError] = CheckpointError,
) -> QuantplanError:
    return error(f"{shown(file)}: {field} is not usable", wanted=wanted, found=kind(value))


def _not_json(file: str, error: json.JSONDecodeError, empty: bool) -> CheckpointError:
    if empty:
        return CheckpointError(f"{shown(file)} is empty", wanted="one JSON object")
    return CheckpointError(f"{shown(file)} is not JSON", found=f"{error.msg} at line "
                           f"{error.lineno} column {error.colno}")


def _disputed(file: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{shown(file)} is not JSON that every reader agrees on",
        wanted="one JSON object in UTF-8",
        found=found,
    )


def _too_deep(file: str) -> CheckpointError:
    return CheckpointError(
        f"{shown(file)} nests too deep",
        wanted=f"at most {NESTING_LIMIT} levels",
        found="more",
    )


def _children(node: object) -> list[object]:
    if isinstance(node, Mapping):
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return []
    return [child for child in node if isinstance(child, (Mapping, list, tuple))]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        left = Counter(name for name, _ in pairs)
        twice = next(name for name in fields if left[name] > 1)
        raise _RefusedError(f"the key {kind(twice)} twice")
    return fields


def _constant(name: str) -> float:
    if name == "NaN":
        raise _RefusedError("NaN, which is not JSON")
    return float(name)


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _RefusedError(f"a number beyond a double: {digits[:20]}")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > DIGITS_LIMIT:
        raise _RefusedError(f"an integer of {len(digits):,} digits")
    return int(digits)
