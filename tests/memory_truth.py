"""What engines printed at start-up, and the configs of the models they served.

cases/memory_truth.jsonl: `source` is the public log, `asked` the flags that were given, `printed`
the figures (GiB of one rank, tokens; a list where workers differ), `fitted` whether a constant of
the tables was fitted to the row. cases/memory_models.json: `config` holds the fields of the model's
config.json that decide memory, on top of the bundled model where one is named.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from quantplan.dispatch.bundled import bundled_checkpoint

CASES = Path(__file__).parent / "cases"


@cache
def truth_rows() -> tuple[dict[str, Any], ...]:
    """Return the rows of memory_truth.jsonl, in the order of the file."""
    lines = (CASES / "memory_truth.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)


def truth_row(id_: str) -> dict[str, Any]:
    """Return the row called `id_`."""
    return next(row for row in truth_rows() if row["id"] == id_)


def by_worker(printed: dict[str, Any]) -> dict[str, Any]:
    """Return a row's figures; of workers that differ the row has one KV memory, the others' is what
    their own terms leave."""
    taken = printed.get("non_kv_gib")
    if not isinstance(taken, list):
        return printed
    left = [round(printed["engine_memory_gib"] - each, 2) for each in taken]
    return {**printed, "kv_gib": left}


@cache
def _models() -> dict[str, dict[str, Any]]:
    rows = json.loads((CASES / "memory_models.json").read_text(encoding="utf-8"))
    return {row["id"]: row for row in rows}


def model_config(name: str) -> dict[str, Any] | None:
    """Return the config.json of a row's model, None where it is not known."""
    row = _models().get(name)
    if row is None:
        return None
    base = bundled_checkpoint(row["bundled"]).config if "bundled" in row else {}
    return {**base, **row["config"]}
