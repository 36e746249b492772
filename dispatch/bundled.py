"""The models that quantplan knows by name, so that the first command needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.tables.load import read_table
from quantplan.tables.model_rows import MODEL_FILES

MOST_SUGGESTIONS = 3


@cache
def bundled_models() -> tuple[Mapping[str, Any], ...]:
    """Return every bundled model's row, in the order of the tables, `config` as the file has it.

    Raises TableError when a table under tables/models/ breaks its schema.
    """
    return tuple({**row, "config": _as_the_file(row["config"])}
                 for file in MODEL_FILES for row in read_table(f"models/{file}")["models"])


def _as_the_file(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row's config with its further keys among the others."""
    named = {key: value for key, value in config.items() if key != "more"}
    return {**named, **config.get("more", {})}


def bundled_checkpoint(name: str) -> Checkpoint | None:
    """Return the checkpoint that a bundled id or alias means, in any case; None for other names.

    A name with a slash is a hub id or a path and never a bundled model. `config` holds the rows'
    keys of config.json; tensors and file sizes are unknown. Raises TableError for a bad table.
    """
    row = _rows_by_name().get(name.lower())
    if row is None:
        return None
    return Checkpoint(name=row["id"], origin="bundled", config=dict(row["config"]))


def closest_models(name: str) -> list[str]:
    """Return up to three bundled ids that are spelled like `name`, the closest first."""
    from difflib import get_close_matches

    rows = _rows_by_name()
    wanted = name.rstrip("/").split("/")[-1].lower()
    spellings = get_close_matches(wanted, rows, n=3 * MOST_SUGGESTIONS)
    ids = dict.fromkeys(str(rows[spelling]["id"]) for spelling in spellings)
    return list(ids)[:MOST_SUGGESTIONS]


@cache
def _rows_by_name() -> Mapping[str, Mapping[str, Any]]:
    return {name: row for row in bundled_models() for name in (row["id"], *row["aliases"])}
