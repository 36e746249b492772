"""What a partial table covers, where a version's table does not speak for all of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.tables.schema import Field, Row

_NAMES = Field("text", "a name")

COVERS: Row = {
    "architectures": Field("list", "model classes; all others are not known", of=_NAMES),
    "model_types": Field("list", "model types; all others are not known", of=_NAMES),
    "config_classes": Field("list", "config classes of quantization methods, besides none; all "
                            "others are not known", of=_NAMES),
    "kv_cache_dtypes": Field("list", "--kv-cache-dtype choices; all others are not known",
                             of=_NAMES),
    "kernels_not": Field("list", "kernels and experts classes whose layers are not known",
                         of=_NAMES),
    "modules_not": Field("list", "module classes whose models are not known", of=_NAMES),
    "options_not": Field("list", "fields of Deployment that must not be given", of=_NAMES),
    "experts": Field("row", "which routed experts", of={
        "methods": Field("list", "method classes; all others are not known", of=_NAMES),
        "facts": Field("map", "facts that must have one of these values",
                       of=Field("list", "values", of=Field("any", "a value"))),
        "options_not": Field("list", "fields of Deployment that must have their default",
                             of=_NAMES),
        "variables_not": Field("list", "environment variables that must not be set", of=_NAMES),
    }),
    "findings": Field("list", "findings that hold; no others are made", of=_NAMES),
    "base_rows": Field("list", "parts of the table that are the base's, unread: nothing may "
                       "depend on them", of=_NAMES),
}


def is_base_row(table: Mapping[str, Any], at: str) -> bool:
    """Return whether the place `at` of a table lies in rows that are its base's, unread."""
    covers = table.get("covers")
    if covers is None:
        return False
    if at.startswith("config_classes["):
        return at[len("config_classes["):].partition("]")[0] not in covers["config_classes"]
    return any(at == part or at.startswith((f"{part}.", f"{part}[", f"{part}_source"))
               for part in covers["base_rows"])


def coverage_is_known(engine: Mapping[str, Any]) -> Iterator[str]:
    """What a partial table says that it covers has rows."""
    covers = engine.get("covers")
    if covers is None:
        return
    known = {
        "architectures": engine["architectures"],
        "config_classes": [row["id"] for row in engine["config_classes"]],
        "kv_cache_dtypes": [row["id"] for row in engine["kv_cache"]["dtypes"]],
        "kernels_not": [row["id"] for part in ("kernels", "experts_classes")
                        for row in engine[part]],
    }
    for field, names in known.items():
        yield from (f"covers.{field}: no {name} in the table" for name in covers[field]
                    if name not in names)
    for part in covers["base_rows"]:
        value: Any = engine
        for step in part.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            yield f"covers.base_rows: no {part} in the table"
