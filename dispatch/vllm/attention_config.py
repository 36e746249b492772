"""--attention-config and the flags of multimodal encoders, as the engine reads them before the
checkpoint's quantization (config/attention.py:AttentionConfig, config/multimodal.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.predicates import fill
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Table
from quantplan.tables.errors import NotKnownError, UsageError
from quantplan.tables.near_names import did_you_mean, near_names

Row = Mapping[str, Any]
OPTION = "--attention-config"


def check_config(table: Table, deployment: Deployment) -> None:
    """Raise for a field or a value that --attention-config cannot have."""
    options = table["attention"]["config"]["options"]
    for name, value in deployment.attention_config.items():
        if name not in options:
            raise UsageError(f"{OPTION} {name}", wanted="one of " + ", ".join(options),
                             hint=did_you_mean(near_names(name, options)))
        if value is not None:
            _check_value(options[name], value)
    configured_backend(table, deployment)
    backends_of_kinds(table, deployment)
    prefill_name(table, deployment)


def _check_value(row: Row, value: Any) -> None:
    wanted = None
    if "unknown" in row:
        raise NotKnownError(f"{OPTION} {row['id']}", hint=f"{row['unknown']}.")
    if "values" in row and not any(value is v or (type(value), value) == (type(v), v)
                                   for v in row["values"]):
        wanted = "one of " + ", ".join(str(v).lower() for v in row["values"])
    if row.get("whole") and type(value) is not int:
        wanted = "a whole number"
    if row.get("named") == "kinds" and not _is_text_map(value):
        wanted = "a mapping of kinds to backends"
    if row.get("named") in {"backend", "prefill"} and not isinstance(value, str):
        wanted = "a name"
    if wanted:
        raise UsageError(f"{OPTION} {row['id']}={value}", wanted=wanted)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value.values())


def configured_backend(table: Table, deployment: Deployment) -> str | None:
    """Return the backend that the config names, None where the engine chooses."""
    name = deployment.attention_config.get("backend")
    if name is None or name.lower() == "auto":
        return None
    known = _known(table, name)
    return None if known in table["attention"]["config"]["aliases"] else known


def backends_of_kinds(table: Table, deployment: Deployment) -> Mapping[str, str]:
    """Return kind of layers -> the backend that the config names for it."""
    config = table["attention"]["config"]
    found = deployment.attention_config.get("backend_per_kind") or {}
    for kind in found:
        if kind not in config["kinds"]:
            words = {"kind": kind, "kinds": ", ".join(config["kinds"])}
            raise refuse("flags", "ValidationError", fill(config["unknown_kind"], words), None,
                         config["source"])
    return {kind: _known(table, name) for kind, name in found.items()}


def prefill_name(table: Table, deployment: Deployment) -> str | None:
    """Return the name of the MLA prefill backend that is asked for."""
    prefill, name = table["attention"]["prefill"], deployment.attention_config.get(
        "mla_prefill_backend")
    if name is None:
        return None
    if name.upper() not in prefill["names"]:
        words = {"backend": name.upper(), "names": ", ".join(prefill["names"])}
        raise refuse("flags", "ValidationError", fill(prefill["unknown"], words), None,
                     table["attention"]["config"]["source"], "Give one of these, or none.")
    return str(name.upper())


def _known(table: Table, name: str, kind: str = "ValidationError") -> str:
    """Return a backend's name as the engine writes it; refuse one that it does not have."""
    attention = table["attention"]
    if name.upper() not in attention["names"]:
        words = {"backend": name.upper(), "names": ", ".join(attention["names"])}
        raise refuse("flags", kind, fill(attention["unknown"], words), None,
                     attention["names_source"], "Give one of these, or auto.")
    return name.upper()


def backend_name(table: Table, deployment: Deployment) -> str | None:
    """Return the backend of the flags as the engine names it, None for its own choice."""
    asked, configured = deployment.attention_backend, configured_backend(table, deployment)
    if asked is not None and configured is not None:
        raise refuse("flags", "ValueError",
                     "attention_backend and attention_config.backend are mutually exclusive", None,
                     "engine/arg_utils.py:EngineArgs.create_engine_config",
                     hint="Give one of them.")
    if asked is None or asked.lower() == "auto":
        return configured
    return _known(table, asked, "ValueError")


def check_encoder(table: Table, checkpoint: Checkpoint, deployment: Deployment) -> None:
    """Refuse an encoder backend that the engine does not have; text models do not read it."""
    encoder, name = table["attention"]["encoder"], deployment.mm_encoder_attn_backend
    if name is None or not any(field in checkpoint.config for field in encoder["fields"]):
        return
    for row in encoder["removed"]:
        if name.upper() == row["id"]:
            raise refuse("flags", "ValidationError", row["says"], None, encoder["source"])
    _known(table, name)
