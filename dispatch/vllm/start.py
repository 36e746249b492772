"""What start-up asks before any quantization: does anyone know this model type and architecture
(transformers_utils/config.py:HFConfigParser, model_executor/models/registry.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from quantplan.dispatch.config_laws import check_laws
from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.model_types import HUB, check_type, knows_type, names_code
from quantplan.dispatch.trace import Finding, refuse
from quantplan.dispatch.vllm.context import Context, Table
from quantplan.tables.errors import NotKnownError
from quantplan.tables.near_names import did_you_mean, near_names
from quantplan.tables.transformers_rows import transformers_classes

CONFIG_SOURCE = "transformers_utils/config.py:get_config"


def check_start(table: Table, checkpoint: Checkpoint, deployment: Deployment) -> None:
    """Refuse a model type that neither the engine nor Transformers knows, code that is not trusted,
    and architectures that left the engine."""
    check_type(table, checkpoint, deployment, ("ValidationError", CONFIG_SOURCE, HUB))
    check_laws(table, checkpoint)
    named = checkpoint.config.get("architectures") or ()
    if named and architecture(table, named) is None:
        _refuse_architectures(table, named)


def architecture(table: Table, named: Sequence[str]) -> str | None:
    """Return the first of the config's architectures that the engine has a class for."""
    return next((name for name in named if name in table["architectures"]), None)


def _refuse_architectures(table: Table, named: Sequence[str]) -> None:
    """Refuse architectures without a class, or NotKnownError where Transformers has one."""
    classes = transformers_classes(table["model_types"]["transformers"])
    found = next((name for name in named if name in classes), None)
    if found is not None:
        raise NotKnownError(f"the architecture {found}, served by the class of Transformers",
                            hint="The engine builds it from Transformers' own module tree; its "
                            "layers have no rows here.")
    for name in named:
        until = table["removed_architectures"].get(name)
        if until is not None:
            raise refuse(
                "config fields", "ValidationError",
                f"Model architecture {name} was supported in vLLM until v{until}, and is not "
                "supported anymore. Please use an older version of vLLM if you want to use this "
                "model architecture.", None, table["removed_architectures_source"],
                hint=f"vLLM {until} is the last version that serves it.")
    near = did_you_mean(_near_classes(named, table["architectures"]))
    raise refuse("config fields", "ValidationError",
                 f"Model architectures {list(named)} are not supported for now. Supported "
                 f"architectures: dict_keys({list(table['architectures'])})", None,
                 table["architectures_source"],
                 hint=f"No class of this version serves it. {near}".rstrip())


def _near_classes(named: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return up to four known classes that are spelled like one of `named` before the For... that
    most end in; those that end alike first."""
    stems: dict[str, list[str]] = {}
    for name in known:
        stems.setdefault(name.split("For")[0], []).append(name)
    near = [name for asked in named for name in near_names(asked.split("For")[0], stems, cutoff=0.7)
            for name in stems[name]]
    endings = [name.partition("For")[2] for name in named]
    return sorted(near, key=lambda name: name.partition("For")[2] not in endings)[:4]


def code_findings(context: Context) -> Iterator[Finding]:
    """Yield a model type that only code of the repository's can teach the engine, where the config
    does not name that code: the answer then assumes that the code registers itself."""
    config, table = context.checkpoint.config, context.table
    if context.deployment.trust_remote_code and not names_code(context.checkpoint) and (
            not knows_type(table, config.get("model_type"))):
        yield Finding(
            "config fields", "warning", "code-not-named",
            f"model type {config.get('model_type')} is known to neither the engine nor "
            f"Transformers {table['model_types']['transformers']}, and config.json names no code "
            "for it (auto_map): --trust-remote-code alone does not load it",
            "Restore auto_map from the published config.json.", CONFIG_SOURCE)
