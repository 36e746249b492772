"""What the generated questions of an engine are drawn from (tables/grid/)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from quantplan.tables.load import read_table

SHARED = ("odd_values", "model_fields", "models")
"""Lists of a grid, besides its kinds, that another one may share."""


@cache
def grid_rows(engine: str) -> Mapping[str, Any]:
    """Return the engine's grid; what it shares of another engine's comes first in its lists."""
    rows: Mapping[str, Any] = read_table(f"grid/{engine}")
    if "shares" not in rows:
        return rows
    base, without = grid_rows(rows["shares"]["of"]), rows["shares"]["kinds_not"]
    kinds = [kind for kind in base["kinds"] if kind["id"] not in without]
    return {**rows, "kinds": [*kinds, *rows["kinds"]],
            **{name: [*base[name], *rows[name]] for name in SHARED}}
