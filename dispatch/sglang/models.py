"""SGLang's model classes: the structure that the checkpoint has, under the engine's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.structure import Module, Structure
from quantplan.tables.errors import CheckpointError, NotKnownError

OWN_CLASSES: Mapping[str, str] = {"Attention": "RadixAttention"}
"""Module class of the families -> SGLang's (layers/radix_attention.py)."""


def model_row(table: Table, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the row of the checkpoint's model class. Raises NotKnownError for classes without
    one, CheckpointError where the config names none."""
    names = checkpoint.config.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError("config.json: architectures", wanted="a model class",
                              found=repr(names)[:60])
    for row in table["models"]:
        if names[0] in row["architectures"]:
            found: Mapping[str, Any] = row
            return found
    raise NotKnownError(f"SGLang's {names[0]}", wanted="one of " + ", ".join(
        name for row in table["models"] for name in row["architectures"]),
        hint="Its layers are not in SGLang's table yet.")


def built(checkpoint: Checkpoint, row: Mapping[str, Any]) -> Structure:
    """Return the structure with SGLang's module classes and paths: `row` is the class' own. Raises
    NotKnownError for a head_dim that only SGLang's class reads."""
    structure, given = model_structure(checkpoint), checkpoint.config.get("head_dim")
    if row.get("reads_head_dim") and given not in (None, structure.sizes["head_dim"]):
        raise NotKnownError(f"SGLang's {structure.architecture} with head_dim {given}",
                            wanted=f"{structure.sizes['head_dim']}, hidden_size / heads",
                            hint="Sizes of its attention are not in the table then.")
    changes = {change["path"]: change for change in row.get("modules", ())}
    modules = _ordered(list(structure.modules), changes)
    return structure._replace(modules=tuple(
        _renamed(module, changes.get(module.path, {})) for module in modules))


def _ordered(modules: list[Module], changes: Mapping[str, Mapping[str, Any]]) -> list[Module]:
    for path, change in changes.items():
        if "before" in change:
            moved = [module for module in modules if module.path == path]
            modules = [module for module in modules if module.path != path]
            at = next((i for i, module in enumerate(modules) if module.path == change["before"]),
                      len(modules))
            modules[at:at] = moved
    return modules


def _renamed(module: Module, change: Mapping[str, Any]) -> Module:
    own = change.get("module") or OWN_CLASSES.get(module.module, module.module)
    return module._replace(module=own, path=change.get("to", module.path),
                           quantized=change.get("quantized", module.quantized))
