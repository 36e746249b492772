"""Which schema each table follows: the first folder of its name decides."""

from __future__ import annotations

from quantplan.tables.errors import TableError
from quantplan.tables.schema import Row


def document_row(name: str) -> Row:
    """Return the schema of table NAME; raise TableError when no schema claims it."""
    folder = name.split("/")[0]
    if folder == "gpus":
        from quantplan.tables.gpu_rows import GPU_DOCUMENT

        return GPU_DOCUMENT
    if folder == "engines":
        from quantplan.tables.engine_rows import ENGINE_DOCUMENT

        return ENGINE_DOCUMENT
    if folder == "families":
        from quantplan.tables.family_rows import FAMILY_DOCUMENT

        return FAMILY_DOCUMENT
    if folder == "formats":
        from quantplan.tables.format_rows import FORMAT_DOCUMENT

        return FORMAT_DOCUMENT
    if folder == "models":
        from quantplan.tables.model_rows import MODEL_DOCUMENT

        return MODEL_DOCUMENT
    raise TableError(f"tables/{name}.yaml: no schema for folder {folder!r}",
                     hint="Add one to tables/documents.py.")
