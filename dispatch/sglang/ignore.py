"""Which layers a list of names leaves alone (layers/quantization/utils.py:is_layer_skipped)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quantplan.dispatch.sglang.context import Context
from quantplan.dispatch.trace import refuse

SOURCE = "layers/quantization/utils.py:is_layer_skipped"


def is_skipped(context: Context, path: str, ignored: Sequence[str]) -> bool:
    """Return whether the names leave the layer at `path` alone. A fused layer is looked up by its
    parts' names only; refuses where they name some of these. Experts are left alone by the name of
    anything in them."""
    name = path.rsplit(".", maxsplit=1)[-1]
    parts = _parts(context, name)
    if parts:
        found = {_named(path.replace(name, part), ignored) for part in parts}
        if len(found) > 1:
            raise refuse("layer assignment", "ValueError",
                         f"Detected some but not all shards of {path} are quantized. All shards "
                         "of fused layers to have the same precision.", path, SOURCE,
                         hint=f"Name all of {', '.join(parts)} or none.")
        return found.pop()
    return _named(path, ignored) or ("experts" in path and any(
        path in entry for entry in ignored if "experts" in entry))


def both_forms(ignored: Iterable[str]) -> tuple[str, ...]:
    """Return every name without and with the leading `model.`."""
    return tuple(form for name in ignored for bare in (name.removeprefix("model."),)
                 for form in (bare, f"model.{bare}"))


def _parts(context: Context, name: str) -> tuple[str, ...]:
    fallback: Mapping[str, Sequence[str]] = context.table["fused_fallback"]
    return tuple(context.packed.get(name) or fallback.get(name, ()))


def _named(path: str, ignored: Iterable[str]) -> bool:
    return any(matches(name, path) for name in ignored)


def matches(name: str, path: str) -> bool:
    """Return whether whole parts of the dotted path are `name`."""
    name, path = name.rstrip("."), path.rstrip(".")
    return name == path or path.startswith(f"{name}.") or f".{name}." in f".{path}."
