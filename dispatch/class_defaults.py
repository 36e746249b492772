"""What the config class of a model type fills in where config.json leaves a field out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Note

Row = Mapping[str, Any]
TOLD = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
        "vocab_size")
"""The sizes that a whole config.json has; others are often left to the class."""


def filled(config: Row, family: Row) -> Row:
    """Return the config with what the config class of its model type fills in."""
    return {**_row(config, family).get("fields", {}), **config}


def parts_filled(root: Row, family: Row) -> Row:
    """Return config.json with what the config classes of its parts fill in; a part that is no
    object stays as it is."""
    filled_in = {row["part"]: _part(root.get(row["part"]), row)
                 for row in family.get("part_defaults", ()) if _serves(row, root.get(row["part"]))}
    return {**root, **filled_in}


def _serves(row: Row, part: Any) -> bool:
    if part is None:
        return "absent" in row
    if not isinstance(part, Mapping):
        return False
    named = part.get("model_type")
    return "model_types" not in row or (
        bool(row.get("unnamed")) if named is None else named in row["model_types"])


def _part(part: Row | None, row: Row) -> Row:
    return {**row["fields"], **(row["absent"] if part is None else part)}


def left_out(config: Row, family: Row) -> Note | None:
    """Return a note of the sizes that a config leaves to its class, None where it has them all;
    wrappers leave out of text_config whatever is as in the class, which is no mistake."""
    own = _row(config, family).get("fields", {})
    asked = [size["fields"] for size in family["sizes"] if size["id"] in TOLD and "fields" in size]
    missing = dict.fromkeys(name for names in asked if not any(name in config for name in names)
                            for name in names if name in own)
    if "config" in family or not missing:
        return None
    values = ", ".join(f"{name} {own[name]}" for name in missing)
    return Note("left-to-the-class", f"config.json leaves out {', '.join(missing)}; the engine "
                f"takes what the config class has: {values}", "Check that config.json is whole.")


def _row(config: Row, family: Row) -> Row:
    model_type = config.get("model_type")
    return next((row for row in family.get("defaults", ()) if model_type in row["model_types"]), {})
