"""Model types: which of them an engine or its Transformers has a config class for, and how the
engine refuses the others (transformers 5.19.0 models/auto/configuration_auto.py:AutoConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.trace import refuse
from quantplan.tables.transformers_rows import transformers_types

Table = Mapping[str, Any]
HUB = "https://hf.co"


def knows_type(table: Table, model_type: object) -> bool:
    """Return whether the engine or its Transformers has a config class for `model_type`."""
    types = table["model_types"]
    return model_type in types["own"] or model_type in transformers_types(types["transformers"])


def names_code(checkpoint: Checkpoint) -> bool:
    """Return whether the config names code of the repository's for its config class."""
    return "AutoConfig" in (checkpoint.config.get("auto_map") or {})


def check_type(
    table: Table, checkpoint: Checkpoint, deployment: Deployment, shown: tuple[str, str, str]
) -> None:
    """Refuse a model type that no one knows; `shown` are the exception that the engine shows, where
    it comes from, and the address of the hub that it names."""
    model_type, (kind, source, hub) = checkpoint.config.get("model_type"), shown
    if knows_type(table, model_type) or deployment.trust_remote_code:
        return
    name = checkpoint.folder
    if not model_type:
        raise refuse("config fields", kind,
                     f"Unrecognized model in {name}. Should have a `model_type` key in its "
                     "config.json.", None, source, hint="Name model_type in config.json.")
    if names_code(checkpoint):
        raise refuse("config fields", kind, _untrusted(name, hub), None, source,
                     hint="Read the repository's code, then pass --trust-remote-code.")
    raise refuse("config fields", kind, _unrecognised(str(model_type)), None, source,
                 hint="This model needs a newer engine, or config code of its own (auto_map).")


def _untrusted(name: str, hub: str) -> str:
    return (f"The repository {name} contains custom code which must be executed to correctly load "
            f"the model. You can inspect the repository content at {name} .\n You can inspect the "
            f"repository content at {hub}/{name}.\nPlease pass the argument "
            "`trust_remote_code=True` to allow custom code to be run.")


def _unrecognised(model_type: str) -> str:
    return (f"The checkpoint you are trying to load has model type `{model_type}` but Transformers "
            "does not recognize this architecture. This could be because of an issue with the "
            "checkpoint, or because your version of Transformers is out of date.\n\nYou can update "
            "Transformers with the command `pip install --upgrade transformers`. If this does not "
            "work, and the checkpoint is very new, then there may not be a release version that "
            "supports this model yet. In this case, you can get the most up-to-date code by "
            "installing Transformers from source with the command `pip install "
            "git+https://github.com/huggingface/transformers.git`")
