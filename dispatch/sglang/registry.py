"""Which class serves a model: the first of config.json's architectures that SGLang has one for
(models/registry.py, model_loader/utils.py:resolve_transformers_arch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.transformers_rows import transformers_classes

Table = Mapping[str, Any]
SOURCE = "model_loader/utils.py:resolve_transformers_arch"


def architectures(checkpoint: Checkpoint) -> list[str]:
    """Return the architectures that the config names. Raises CheckpointError where it names none.
    """
    names = checkpoint.config.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError("config.json: architectures", wanted="a model class",
                              found=repr(names)[:60])
    return names


def served_class(table: Table, checkpoint: Checkpoint) -> str | None:
    """Return the first architecture that has a class, None where none has."""
    return next((name for name in architectures(checkpoint) if name in table["architectures"]),
                None)


def check_registered(table: Table, checkpoint: Checkpoint) -> None:
    """Refuse architectures that neither the engine nor Transformers has a class for. Raises
    NotKnownError for those that Transformers or the repository's own code serves."""
    if served_class(table, checkpoint) is not None:
        return
    known = transformers_classes(table["model_types"]["transformers"])
    own_code = "AutoModel" in (checkpoint.config.get("auto_map") or {})
    for name in architectures(checkpoint):
        if name not in known and not own_code:
            raise refuse("config fields", "ValueError", f"Cannot find model module. {name!r} is "
                         "not a registered model in the Transformers library (only relevant if the "
                         "model is meant to be in Transformers) and 'AutoModel' is not present in "
                         "the model config's 'auto_map' (relevant if the model is custom).", None,
                         SOURCE, hint="No class of this version serves it.")
    raise NotKnownError(f"the architecture {architectures(checkpoint)[0]}, which SGLang has no "
                        "class for", hint="The engine builds it from the module tree of "
                        "Transformers or of the repository's code; its layers have no rows here.")
