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
    "config_laws": Field("list", "what config classes want of their fields", required=False, of={
        "model_types": Field("list", "of these config classes", of=Field("text", "a model_type")),
        "product": Field("list", "fields whose product is asked about",
                         of=Field("text", "a field")),
        "multiple_of": Field("list", "it is a multiple of the product of these", required=False,
                             of=Field("text", "a field")),
        "equals": Field("list", "it is the product of these", required=False,
                        of=Field("text", "a field")),
        "zero": Field("flag", "it is zero, or false", required=False),
        "says": Field("text", "the refusal; {product} and {other} are the two"),
        "source": Field("text", "file:symbol of the package"),
    }),
    "config_numbers": Field("list", "fields of config classes that are whole numbers, and no null",
                            required=False, of={
                                "field": Field("text", "the field"),
                                "model_types": Field("list", "of these config classes",
                                                     of=Field("text", "a model_type")),
                                "source": Field("text", "file:symbol of the package"),
                            }),
    "classes": Field("list", "model classes", required=False, of=Field("text", "a class name")),
    "classes_source": Field("text", "which names of the package these are", required=False),
}


@cache
def transformers_types(version: str) -> frozenset[str]:
    """Return the model types that a Transformers version has a config class for."""
    return frozenset(read_table(f"transformers/{version}")["model_types"])


def transformers_laws(version: str) -> list[Row]:
    """Return what a Transformers version's config classes want of their fields."""
    found: list[Row] = read_table(f"transformers/{version}")["config_laws"]
    return found


def transformers_numbers(version: str) -> list[Row]:
    """Return the fields of a Transformers version's config classes that are whole numbers."""
    found: list[Row] = read_table(f"transformers/{version}")["config_numbers"]
    return found


@cache
def transformers_classes(version: str) -> frozenset[str]:
    """Return the model classes of a Transformers version."""
    return frozenset(read_table(f"transformers/{version}-classes")["classes"])
