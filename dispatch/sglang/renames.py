"""How a model class renames the modules that a quantization config lists
(models/utils.py:WeightsMapper)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from quantplan.dispatch.sglang.context import Context

Rules = Mapping[str, str]
FITS: Mapping[str, tuple[Callable[[str, str], bool], Callable[[str, str, str], str]]] = {
    "substr": (str.__contains__, lambda name, old, new: name.replace(old, new, 1)),
    "prefix": (str.startswith, lambda name, old, new: new + name[len(old):]),
    "suffix": (str.endswith, lambda name, old, new: name[:len(name) - len(old)] + new),
}
"""Kind of rule, in the mapper's order -> whether it fits a name, and what it makes of it."""


def renamed(context: Context, name: str) -> str:
    """Return the engine's name of a module: of each kind of rule the longest that fits is made."""
    for kind, (fits, make) in FITS.items():
        rules: Rules = context.renames.get(kind, {})
        old = max((old for old in rules if fits(name, old)), key=len, default=None)
        name = name if old is None else make(name, old, rules[old])
    return name


def all_renamed(context: Context, names: Iterable[str]) -> tuple[str, ...]:
    """Return the engine's names of the modules, each once."""
    return tuple(dict.fromkeys(renamed(context, name) for name in names))
