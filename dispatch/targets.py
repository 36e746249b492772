"""Targets of compressed-tensors' config groups: names, expressions after re:, module classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quantplan.dispatch.expressions import search


def matches(value: str, target: str, contains: bool = False) -> bool:
    """Return whether a target (name, re: pattern, or contained word) matches `value`
    (model_executor/layers/quantization/utils/config_utils.py:is_equal_or_regex_match; SGLang's
    function of that name does the same)."""
    if target.startswith("re:"):
        return search(target[3:], value)
    if contains:
        return target.lower() in value.lower()
    return target == value


def named_target(value: str, targets: Iterable[str], contains: bool = False) -> str | None:
    """Return the first target that matches `value`."""
    return next((t for t in targets if matches(value, t, contains)), None)


def fused_target(
    path: str, targets: Sequence[str], packed: Mapping[str, Sequence[str]]
) -> str | None:
    """Return the first leaf's target where every leaf of the fused layer has one."""
    fused = next((name for name in packed if path.endswith(name)), None)
    if fused is None:
        return None
    found = [named_target(path.replace(fused, leaf), targets) for leaf in packed[fused]]
    return found[0] if all(found) else None
