"""How a model class renames checkpoint modules to its own (hf_to_vllm_mapper), for the names that a
quantization config lists (vLLM model_executor/models/utils.py:WeightsMapper)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quantplan.tables.record import NamedTuple

Pairs = tuple[tuple[str, str], ...]


class Renames(NamedTuple):
    """One mapper: each of its rules is applied to a name, in this order."""

    regex: Pairs = ()
    substr: Pairs = ()
    prefix: Pairs = ()
    suffix: Pairs = ()

    def name(self, name: str) -> str:
        """Return the engine's name of a checkpoint module."""
        for pattern, new in self.regex:
            name = re.sub(pattern, new, name)
        for old, new in self.substr:
            name = name.replace(old, new, 1)
        for old, new in self.prefix:
            name = new + name[len(old):] if name.startswith(old) else name
        for old, new in self.suffix:
            name = name[: len(name) - len(old)] + new if name.endswith(old) else name
        return name


def read_renames(rows: Iterable[Mapping[str, Mapping[str, str]]]) -> tuple[Renames, ...]:
    """Return the mappers of a family's rows, the outer model's first."""
    return tuple(Renames(*(tuple(row.get(rule, {}).items()) for rule in Renames._fields))
                 for row in rows)


def rename(name: str, mappers: Sequence[Renames]) -> str:
    """Return the engine's name of one checkpoint module under every mapper in turn."""
    for mapper in mappers:
        name = mapper.name(name)
    return name


def renamed(fields: Any, which: Mapping[str, str], mappers: Sequence[Renames]) -> Any:
    """Return a quantization config's fields, the names that it lists made the engine's.

    `which` maps a field to "names" (all of them are renamed) or "paths" (class names and
    expressions are not: CompressedTensorsConfig.apply_vllm_mapper). A field that knows how is asked
    itself.
    """
    if not which or fields is None or not mappers:
        return fields
    return fields._replace(**{field: _names(getattr(fields, field), what == "paths", mappers)
                              for field, what in which.items()})


def _names(value: Any, paths_only: bool, mappers: Sequence[Renames]) -> Any:
    def new(name: str) -> str:
        left = paths_only and ("." not in name or name.startswith("re:"))
        return name if left else rename(name, mappers)

    if value is None:
        return None
    if value is None or hasattr(value, "renamed"):
        return value and value.renamed(new)
    if isinstance(value, Mapping):
        return {new(name): item for name, item in value.items()}
    return type(value)(new(name) for name in value)
