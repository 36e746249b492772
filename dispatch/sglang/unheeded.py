"""Names in an ignore list that keep no layer in 16 bits: parts of fused layers, which most model
classes build without saying what they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quantplan.dispatch.expressions import finds
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.trace import Finding, Layer

LISTS = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules", "exclude",
         "llm_int8_skip_modules")
PLAIN = "Unquantized"
SOURCE = "layers/quantization/compressed_tensors/utils.py:should_ignore_layer"


def unheeded(
    table: Table, checkpoint: Checkpoint, layers: tuple[Layer, ...]
) -> Iterator[Finding]:
    """Yield the first fused layer that is quantized although the config's list names a part of
    it."""
    entries = _entries(checkpoint)
    fused: Mapping[str, list[str]] = table["fused_fallback"]
    for layer in layers if entries else ():
        name = layer.path.rsplit(".", maxsplit=1)[-1]
        if layer.method is None or layer.method.startswith(PLAIN):
            continue
        for leaf in fused.get(name, ()):
            path = layer.path.removesuffix(name) + leaf
            entry = next((entry for entry in entries if _names(entry, leaf, path)), None)
            if entry is not None:
                yield Finding("layer assignment", "warning", "ignore-without-effect",
                              f"{entry} in the config's list keeps nothing in 16 bits: "
                              f"{layer.path} is one layer for the engine, and it is quantized",
                              f"Name {name}, or the module that holds it, if the checkpoint's "
                              "weights are not quantized.", SOURCE)
                return


def _entries(checkpoint: Checkpoint) -> list[str]:
    """Return the names in the lists of the checkpoint's config."""
    config = checkpoint.config.get("quantization_config")
    found = [config.get(key) for key in LISTS] if isinstance(config, Mapping) else []
    return [name for names in found if isinstance(names, list) for name in names
            if isinstance(name, str)]


def _names(entry: str, leaf: str, path: str) -> bool:
    """Return whether an entry names the part: a path or an expression that ends with it."""
    if entry.startswith("re:"):
        return leaf in entry and finds(entry[3:], path)
    return entry == leaf or (entry.endswith(f".{leaf}") and f".{path}".endswith(f".{entry}"))
