"""Tables as plain data: compiled JSON when it is fresh, else the YAML, checked against its schema.

YAML is the truth; `tables/compiled/*.json` is the same content in a form that loads fifty times
faster. A compiled file carries the CRC-32 of the YAML it was made from and is ignored when that
does not match, so an edited table takes effect at once (lint refuses a stale compiled file).
A table that `extends` another one is compiled with the changes made; its CRC covers both.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from functools import cache
from typing import Any

from quantplan.tables.errors import TableError

FOLDER = os.path.dirname(os.path.abspath(__file__))


@cache
def read_table(name: str) -> Any:
    """Return the content of `tables/NAME.yaml` and its parts; raise TableError if it is bad."""
    compiled = fresh_compiled(name, sources_crc32(name))
    return compiled if compiled is not None else parse_table(name, *read_sources(name))


def table_names() -> list[str]:
    """Return every table's name (path under tables/, without .yaml), sorted; parts have none."""
    found = []
    for folder, _, files in os.walk(FOLDER):
        if os.path.exists(folder + ".yaml"):
            continue
        for file in files:
            if file.endswith(".yaml"):
                path = os.path.relpath(os.path.join(folder, file), FOLDER)
                found.append(path[: -len(".yaml")].replace(os.sep, "/"))
    return sorted(found)


def part_names(name: str) -> list[str]:
    """Return the names of the parts of table NAME: the files of the folder NAME, sorted."""
    folder = os.path.join(FOLDER, name)
    files = sorted(os.listdir(folder)) if os.path.isdir(folder) else ()
    return [f"{name}/{file[: -len('.yaml')]}" for file in files if file.endswith(".yaml")]


def read_sources(name: str) -> list[bytes]:
    """Return the bytes of table NAME and of its parts, in order."""
    return [_read_bytes(os.path.join(FOLDER, n + ".yaml")) for n in (name, *part_names(name))]


def sources_crc32(name: str) -> int:
    """Return the CRC-32 over everything that table NAME is made from: itself, then its bases."""
    crc = 0
    for link in chain_names(name):
        for source in read_sources(link):
            crc = zlib.crc32(source, crc)
    return crc


def chain_names(name: str) -> list[str]:
    """Return NAME and the tables that it extends, one after another; raise TableError when they
    go round or one is missing."""
    names = [name]
    while base := head_field(names[-1], "extends"):
        link = f"{os.path.dirname(name)}/{base}"
        if link in names:
            raise TableError(f"tables/{names[-1]}.yaml: extends: {base} extends this table")
        if not os.path.exists(os.path.join(FOLDER, link + ".yaml")):
            raise TableError(f"tables/{names[-1]}.yaml: extends: no table {base}")
        names.append(link)
    return names


def head_field(name: str, field: str) -> str | None:
    """Return a text of the first file of table NAME without parsing all of it, or None."""
    pattern = rf'^{field}: *"?([^"\s]+)"? *$'.encode()
    found = re.search(pattern, _read_bytes(os.path.join(FOLDER, name + ".yaml")), re.MULTILINE)
    return found[1].decode() if found else None


def parse_table(name: str, source: bytes, *parts: bytes) -> Any:
    """Parse YAML bytes strictly and check them against the schema of table NAME.

    The lists and maps of the parts are appended to those of the same key; the changes of a table
    that extends another one are made to that.
    """
    from quantplan.tables.documents import document_row
    from quantplan.tables.schema import check
    from quantplan.tables.strict_yaml import load_strict

    where = f"tables/{name}.yaml"
    value = load_strict(source, where)
    for part_name, part in zip(part_names(name) if parts else (), parts, strict=True):
        _append(value, load_strict(part, f"tables/{part_name}.yaml"), f"tables/{part_name}.yaml")
    if isinstance(value, dict) and "extends" in value:
        value = _extended(name, value, where)
    check(value, document_row(name), where)
    return value


def _extended(name: str, value: Any, where: str) -> Any:
    from quantplan.tables.documents import overlay_row
    from quantplan.tables.overlay import apply_changes
    from quantplan.tables.schema import check

    check(value, overlay_row(name), where)
    base = chain_names(name)[1]
    table = apply_changes(parse_table(base, *read_sources(base)), value["changes"], where)
    table.pop("default", None)
    return {**table, **value}


def _append(value: Any, part: Any, where: str) -> None:
    for key, content in part.items():
        if key not in value:
            value[key] = content
        elif isinstance(content, list) and isinstance(value[key], list):
            value[key] = [*value[key], *content]
        elif isinstance(content, dict) and isinstance(value[key], dict):
            _append(value[key], content, where)
        else:
            raise TableError(f"{where}: {key}: given twice", wanted="a list or a map in each part")


def compiled_path(name: str) -> str:
    """Return where the compiled form of table NAME lies."""
    return os.path.join(FOLDER, "compiled", name.replace("/", "__") + ".json")


def fresh_compiled(name: str, crc32: int) -> Any:
    """Return the content of the compiled form NAME, None where it is not that of `crc32`."""
    try:
        with open(compiled_path(name), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    fresh = isinstance(content, dict) and content.get("crc32") == crc32
    return content.get("table") if fresh else None


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TableError(f"table {os.path.relpath(path, FOLDER)} cannot be read",
                         found=error.strerror or str(error)) from None
