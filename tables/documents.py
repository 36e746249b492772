"""Which schema each table follows: the folder of its name decides."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from quantplan.tables.errors import TableError
from quantplan.tables.schema import Row


def document_row(name: str) -> Row:
    """Return the schema of table NAME; raise TableError when no schema claims it."""
    return _row(name, SCHEMAS)


def overlay_row(name: str) -> Row:
    """Return the schema of a table NAME that extends another one; raise TableError when tables of
    its folder cannot."""
    return _row(name, OVERLAYS)


def _row(name: str, schemas: Mapping[str, tuple[str, str]]) -> Row:
    parts = name.split("/")
    folder = next((f for f in ("/".join(parts[:2]), parts[0]) if f in schemas), parts[0])
    if folder not in schemas:
        raise TableError(f"tables/{name}.yaml: no schema for folder {folder!r}",
                         hint="Add one to tables/documents.py.")
    module, row = schemas[folder]
    found: Row = getattr(import_module(f"quantplan.tables.{module}"), row)
    return found


SCHEMAS = {
    "engines/vllm": ("engine_rows", "ENGINE_DOCUMENT"),
    "engines/sglang": ("sglang_rows", "SGLANG_DOCUMENT"),
    "families": ("family_rows", "FAMILY_DOCUMENT"),
    "formats": ("format_rows", "FORMAT_DOCUMENT"),
    "levers": ("lever_rows", "LEVER_DOCUMENT"),
    "grid": ("grid_rows", "GRID_DOCUMENT"),
    "gpus": ("gpu_rows", "GPU_DOCUMENT"),
    "older": ("gpu_rows", "OLDER_DOCUMENT"),
    "memory": ("memory_rows", "MEMORY_DOCUMENT"),
    "models": ("model_rows", "MODEL_DOCUMENT"),
    "transformers": ("transformers_rows", "TRANSFORMERS_DOCUMENT"),
    "kept": ("loading_rows", "KEPT_DOCUMENT"),
    "rotary": ("loading_rows", "ROTARY_DOCUMENT"),
    "modes": ("mode_rows", "MODE_DOCUMENT"),
    "kv": ("kv_cache_rows", "KV_CACHE_DOCUMENT"),
    "logs": ("log_rows", "LOG_DOCUMENT"),
}
"""Folder under tables/ -> the module and name of its schema."""

OVERLAYS = {"engines": ("engine_rows", "OVERLAY_DOCUMENT")}
"""The same for tables that extend another one of their folder."""
