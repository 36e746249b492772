"""What both engines' HummingConfig reads of a checkpoint's config in the same way: which layers it
skips, and which part of a compressed-tensors group holds for them
(layers/quantization/humming.py:HummingConfig.is_layer_skipped, compressed_tensors_get_config)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Config = Mapping[str, Any]
Search = Callable[[str, str], object]


def is_skipped(
    config: Config, names: Iterable[str], path: str, search: Search,
    refused: Callable[[], Exception],
) -> bool:
    """Return whether a layer stays in 16 bits: named in `names`, a head, or under a rule of
    `dynamic` that begins with a minus. Raises what `refused` returns for an empty `dynamic`."""
    if any(search(name[3:], path) if name.startswith("re:") else name in path for name in names):
        return True
    if "lm_head" in path:
        return True
    rules = config.get("dynamic", {})
    if rules is None:
        raise refused()
    return any(rule[:1] == "-" and search(rule[2:], path) for rule in rules)


def group_part(
    config: Config, part: str, need: Callable[[Config, str], Any]
) -> dict[str, Any] | None:
    """Return a part of the first group for Linear with what the whole config says of all of them,
    None where the group has none. `need` returns a field or raises the engine's refusal."""
    for group in need(config, "config_groups").values():
        if "Linear" in need(group, "targets"):
            if "weights" not in group or group.get(part) is None:
                return None
            added = "format" if config["quant_method"] == "compressed-tensors" else "quant_algo"
            return {**group[part], "quant_method": config["quant_method"],
                    added: need(config, added)}
    return None
