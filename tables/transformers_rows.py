"""The schema of what a Transformers version knows: model types, and model classes in a table of
their own, since few questions need them."""

from __future__ import annotations

from functools import cache

from quantplan.tables.load import read_table
from quantplan.tables.schema import Field, Row

TRANSFORMERS_DOCUMENT: Row = {
    "version": Field("text", "its version, quoted"),
    "model_types": Field("list", "model types that have a config class", required=False,
                         of=Field("text", "a model_type")),
    "model_types_source": Field("text", "file:symbol of the package", required=False),
    "classes": Field("list", "model classes", required=False, of=Field("text", "a class name")),
    "classes_source": Field("text", "which names of the package these are", required=False),
}


@cache
def transformers_types(version: str) -> frozenset[str]:
    """Return the model types that a Transformers version has a config class for."""
    return frozenset(read_table(f"transformers/{version}")["model_types"])


@cache
def transformers_classes(version: str) -> frozenset[str]:
    """Return the model classes of a Transformers version."""
    return frozenset(read_table(f"transformers/{version}-classes")["classes"])
