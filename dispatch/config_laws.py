"""What Transformers' config classes refuse of their fields: null, and what validate_architecture
refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.predicates import fill
from quantplan.dispatch.trace import refuse
from quantplan.tables.transformers_rows import transformers_laws, transformers_numbers

Table = Mapping[str, Any]


def check_laws(table: Table, checkpoint: Checkpoint) -> None:
    """Refuse fields that the config class of their model type refuses: Transformers' where it has
    one, whatever class the engine reads the config with later."""
    root, version = checkpoint.config, table["model_types"]["transformers"]
    rules = [(_check_number, row) for row in transformers_numbers(version)]
    rules += [(_check_law, row) for row in transformers_laws(version)]
    for check, row in rules:
        for config in (root.get("text_config"), root):
            if isinstance(config, Mapping) and config.get("model_type") in row["model_types"]:
                check(row, config)


def _check_number(row: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    name = row["field"]
    if config.get(name, 0) is None:
        raise refuse("config fields", "StrictDataclassFieldValidationError",
                     f"Validation error for field '{name}':\n    TypeError: Field '{name}' "
                     "expected int, got NoneType (value: None)", None, row["source"],
                     hint=f"config.json: {name}: a whole number.")


def _check_law(row: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    others = row.get("multiple_of") or row.get("equals", ())
    product, other = _product(config, row["product"]), _product(config, others)
    if product is None or other is None:
        return
    if _broken(row, product, other):
        text = fill(row["says"], {"product": product, "other": other})
        raise refuse("config fields", "StrictDataclassClassValidationError",
                     f"Class validation error for validator 'validate_architecture':\n    "
                     f"ValueError: {text}", None, row["source"],
                     hint=f"config.json: {', '.join((*row['product'], *others))}.")


def _broken(row: Mapping[str, Any], product: int, other: int) -> bool:
    if "multiple_of" in row:
        return bool(other and product % other)
    return product != (0 if row.get("zero") else other)


def _product(config: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Return the product of fields, None where the config leaves one out."""
    sizes = [value for value in map(config.get, names) if isinstance(value, int)]
    return prod(sizes) if len(sizes) == len(names) else None
