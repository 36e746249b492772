"""YAML without surprises: safe, and duplicate keys are errors (PyYAML keeps the last silently)."""

from __future__ import annotations

from typing import Any

import yaml
from quantplan.tables.errors import TableError

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Base):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys, dates, anchors and merge keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise TableError(f"{key_node.start_mark.name}:{key_node.start_mark.line + 1}: "
                                 f"duplicate key {key!r}", wanted="each key once")
            seen.add(key)
        return dict(super().construct_mapping(node, deep=deep))


def load_strict(source: bytes, where: str) -> Any:
    """Return the document in `source`; raise TableError naming `where` and the line."""
    loader = _StrictLoader(source.decode("utf-8"))
    loader.name = where
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise TableError(f"{where}{line}: not YAML", found=str(problem)) from None
    finally:
        loader.dispose()
