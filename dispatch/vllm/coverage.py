"""A table that speaks for a part of an engine version only: what it does not cover is not known
(the field `covers`; absent: the table covers everything)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.trace import PARTIAL_TABLE, Finding
from quantplan.dispatch.vllm.context import Context, Table
from quantplan.dispatch.vllm.names import NamedMethod, class_of
from quantplan.tables.errors import NotKnownError

PARTIAL = Finding(
    "flags", "info", PARTIAL_TABLE,
    "this version's table covers the choice of methods, kernels and attention backends; what fails "
    "after that is not checked", "Ask a version whose table is whole for the rest.")


def check_question(table: Table, checkpoint: Checkpoint, deployment: Deployment) -> None:
    """Raise NotKnownError for models and options that the table does not cover."""
    covers = table.get("covers")
    if covers is None:
        return
    config = checkpoint.config
    named = config.get("architectures")
    if not (isinstance(named, list) and named):
        raise _unknown(table, "a model without architectures", covers["architectures"])
    for name in named:
        _check(table, "the architecture", name, covers["architectures"])
    _check(table, "the model type", config.get("model_type"), covers["model_types"])
    _check(table, "--kv-cache-dtype", deployment.kv_cache_dtype, covers["kv_cache_dtypes"])
    backend = (deployment.attention_backend or "").upper()
    if backend in table["attention"]["names"]:
        _check(table, "--attention-backend", backend, table["attention"]["backends"])
    for field in Deployment._fields:
        if field in covers["options_not"] and getattr(deployment, field):
            raise _unknown(table, f"--{field.replace('_', '-')}", ())


def check_modules(table: Table, structure: Structure) -> None:
    """Raise NotKnownError for a model with modules that the table does not cover."""
    for name in table.get("covers", {}).get("modules_not", ()):
        if any(module.module == name for module in structure.modules):
            raise _unknown(table, f"a model with {name}", ())


def check_latent(context: Context) -> None:
    """Raise NotKnownError for latent attention that is switched off."""
    known = context.table["attention"]["modules"]
    if context.facts["env.VLLM_MLA_DISABLE"] and any(
            known.get(module.module, {}).get("mla") for module in context.structure.modules):
        raise NotKnownError("VLLM_MLA_DISABLE", hint="The plain attention of models with latent "
                            "attention is not in the table: drop it.")


def check_method(table: Table, named: NamedMethod, deployment: Deployment) -> None:
    """Raise NotKnownError for a quantization method that the table does not cover, and for one
    that quantizes again what the checkpoint has quantized."""
    covers, name = table.get("covers"), named.resolved
    if covers is None or name is None:
        return
    online, asked = named.config is None, deployment.quantization
    if asked != name and asked in table["online_methods"]:
        raise _unknown(table, f"--quantization {asked} of a checkpoint of the method {name}", ())
    if class_of(table, name, online) not in covers["config_classes"]:
        known = [method["id"] for method in table["methods"].values()
                 if method["config_class"] in covers["config_classes"]]
        raise _unknown(table, f"the method {name}{' of a 16-bit checkpoint' if online else ''}",
                       known)


def check_experts(context: Context, method: str, facts: Mapping[str, Any]) -> None:
    """Raise NotKnownError for routed experts that the table does not cover: their method class, a
    fact of theirs, an option or a variable."""
    covers = context.table.get("covers")
    if covers is None:
        return
    known = covers["experts"]
    _check(context.table, "experts under", method, known["methods"])
    for fact, values in known["facts"].items():
        _check(context.table, f"experts whose {fact} is", facts[fact], values)
    for field in known["options_not"]:
        if getattr(context.deployment, field) != Deployment._field_defaults[field]:
            raise _unknown(context.table, f"experts with --{field.replace('_', '-')}", ())
    for name in known["variables_not"]:
        if name in context.deployment.env:
            raise _unknown(context.table, f"experts with {name}", ())


def check_kernel(table: Table, kernel: str) -> None:
    """Raise NotKnownError for a layer whose kernel the table does not cover."""
    if kernel in table.get("covers", {}).get("kernels_not", ()):
        raise _unknown(table, f"what {kernel} computes", ())


def covered(table: Table, found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings that the table covers, and one that says that there may be others."""
    covers = table.get("covers")
    if covers is None:
        return found
    return (*(finding for finding in found if finding.id in covers["findings"]), PARTIAL)


def _check(table: Table, what: str, name: Any, known: Iterable[Any]) -> None:
    if name not in known:
        raise _unknown(table, f"{what} {name}", known)


def _unknown(table: Table, what: str, known: Iterable[Any]) -> NotKnownError:
    return NotKnownError(f"{what} in {table['engine']} {table['version']}",
                         wanted=", ".join(map(str, known)) or None,
                         hint="The table of this version covers a part of the engine.")
