"""The compiled forms: what `quantplan tables compile` writes and lint compares."""

from __future__ import annotations

import json
import os
from typing import Any

from quantplan.tables import family_index
from quantplan.tables.load import (
    compiled_path,
    parse_table,
    read_sources,
    sources_crc32,
    table_names,
)


def compile_table(name: str) -> str:
    """Return the compiled JSON text of table NAME."""
    return _text(sources_crc32(name), parse_table(name, *read_sources(name)))


def compile_index() -> str:
    """Return the compiled JSON text of the index of families."""
    return _text(family_index.index_crc32(), family_index.made_index())


def _text(crc32: int, table: Any) -> str:
    content = {"crc32": crc32, "table": table}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n"


def write_compiled() -> list[str]:
    """Write every compiled form, drop those without a table; return the names of the tables."""
    names = table_names()
    texts = {compiled_path(name): compile_table(name) for name in names}
    texts[compiled_path(family_index.NAME)] = compile_index()
    folder = os.path.dirname(compiled_path(""))
    os.makedirs(folder, exist_ok=True)
    for file in os.listdir(folder):
        if os.path.join(folder, file) not in texts:
            os.remove(os.path.join(folder, file))
    for path, text in texts.items():
        with open(path + ".new", "w", encoding="utf-8") as target:
            target.write(text)
        os.replace(path + ".new", path)
    return names
