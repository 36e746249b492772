"""The names in a compressed-tensors config: which layers `ignore` leaves alone and which target
serves a layer (layers/quantization/compressed_tensors/utils.py)."""

from __future__ import annotations

from collections.abc import Iterable

from quantplan.dispatch.expressions import search
from quantplan.dispatch.sglang.context import Context
from quantplan.dispatch.targets import fused_target, named_target
from quantplan.dispatch.trace import refuse

FILE = "layers/quantization/compressed_tensors/utils.py"


def is_named(path: str, entries: Iterable[str]) -> bool:
    """Return whether an entry is the path or its last parts, or an expression that fits its start
    (check_equal_or_regex_match)."""
    return any(search(entry[3:], path) if entry.startswith("re:") else f".{path}".endswith(
        f".{entry}") for entry in entries)


def is_ignored(context: Context, path: str, ignore: tuple[str, ...]) -> bool:
    """Return whether `ignore` names the layer. A fused layer goes by its leaves' names only where
    the model class declares them; refuses where some of these are named (should_ignore_layer)."""
    name = path.rsplit(".", maxsplit=1)[-1]
    if name not in context.packed or path in ignore:
        return is_named(path, ignore)
    leaves = context.packed[name]
    found = {is_named(path.replace(name, leaf), ignore) for leaf in leaves}
    if len(found) > 1:
        raise refuse("layer assignment", "ValueError", "Found different quantization schemes for "
                     f"{[*leaves]} in {path}. SGLang requires all to use the same scheme.", path,
                     f"{FILE}:should_ignore_layer", hint="Ignore all of them or none.")
    return found.pop()


def find_target(
    context: Context, path: str, module: str, targets: Iterable[str], refuses: bool = True
) -> str | None:
    """Return the target that serves the layer: by its name, its class, or its leaves' names.
    Without one it refuses, or returns None where not `refuses` (find_matched_target)."""
    listed = [*targets]
    found = (named_target(path, listed) or named_target(module, listed, contains=True)
             or fused_target(path, listed, context.packed))
    if found is None and refuses:
        raise refuse("layer assignment", "ValueError", f"Unable to find matching target for {path} "
                     "in the compressed-tensors config.", path, f"{FILE}:find_matched_target",
                     hint="Layers that are not quantized stand in ignore.")
    return found
