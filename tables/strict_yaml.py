"""YAML without surprises: safe, no aliases, no dates, and duplicate keys are errors."""

from __future__ import annotations

import re
from typing import Any

import yaml
from quantplan.tables.errors import TableError

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


TEXT = "tag:yaml.org,2002:str"
EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+")


class _StrictLoader(_Base):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys, keys that are no scalars, aliases, dates, and
    numbers that YAML 1.1 reads as text (1e-06)."""

    where = ""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                raise self.problem(key_node, "a key that is no text", "text")
            if key_node.value in seen:
                raise self.problem(key_node, f"duplicate key {key_node.value!r}", "each key once")
            seen.add(key_node.value)
        return dict(super().construct_mapping(node, deep=deep))

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if not node.style and node.tag == TEXT and EXPONENT.fullmatch(value):
            raise self.problem(node, f"{value} is text", "a number with a point, or quotes")
        return value

    def problem(self, place: Any, what: str, wanted: str) -> TableError:
        """Return the error for one place of the document, with its line."""
        return TableError(f"{self.where}:{place.start_mark.line + 1}: {what}", wanted=wanted)


def _refuse_aliases(loader: Any, text: str) -> None:
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise loader.problem(event, "an anchor or alias", "each row written out")


def _no_date(loader: Any, node: Any) -> Any:
    raise loader.problem(node, f"an unquoted date {node.value}", "dates in quotes")


_StrictLoader.add_constructor("tag:yaml.org,2002:timestamp", _no_date)


def load_strict(source: bytes, where: str) -> Any:
    """Return the document in `source`; raise TableError naming `where` and the line."""
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TableError(f"{where}: not UTF-8", found=f"byte {error.start}") from None
    loader = _StrictLoader(text)
    loader.where = where
    try:
        _refuse_aliases(loader, text)
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise TableError(f"{where}{line}: not YAML", found=str(problem)) from None
    finally:
        loader.dispose()
