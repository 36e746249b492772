"""What an architecture's own pass makes of the server arguments
(arg_groups/model_overrides/)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.names import UNQUANT, quantization_config
from quantplan.dispatch.trace import Refusal, refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]
NO_RULE: Row = {}
NONE = "none"
"""How rows spell no quantization."""
AUTO = "auto"
FP8_WEIGHTS = "F8_E4M3"
MODELOPT = "modelopt"
W4A16 = "W4A16_NVFP4"


class Server(NamedTuple):
    """The server arguments --quantization and --moe-runner-backend as they are in the end, the
    format of the routed experts, and the dtype where the server sets it for the
    architecture."""

    quantization: str | None
    moe_backend: str
    experts_format: str
    dtype: str | None = None


class Asked(NamedTuple):
    """What a pass reads besides its row: the table, the checkpoint, the deployment, gpu.family, and
    the method's name after all overrides."""

    table: Table
    checkpoint: Checkpoint
    deployment: Deployment
    family: int
    resolved: str | None


def passed(changes: Row, server: Server, asked: Asked) -> Server:
    """Return the arguments after the pass, or refuse as it does."""
    if asked.family not in changes.get("families", (asked.family,)):
        return server
    server = server._replace(quantization=_copied(changes, asked))
    named = {"typed": server.quantization, "resolved": asked.resolved,
             "written": written_method(asked.checkpoint)}[changes.get("reads", "typed")]
    method = NONE if named in (None, UNQUANT) else str(named)
    own = asked.checkpoint.config.get("quantization_config") or {}
    if method in changes.get("not_known", ()) or changes.get("not_known_with") in own:
        raise NotKnownError(f"what SGLang's server makes of {method} with this model class here",
                            hint="The formats of its experts decide, which no rule reads yet.")
    _check_activation(changes, method, asked)
    backend = _of_mixed(changes, method, asked)
    rule: Row = {"moe_backend": backend} if backend else _rule(changes, method, asked)
    free = (AUTO, *rule.get("over", ()), *_exchanges(changes, asked.table))
    if "moe_backend" in rule and server.moe_backend in free:
        server = server._replace(moe_backend=rule["moe_backend"])
    return server._replace(dtype=changes.get("dtypes", {}).get(method, server.dtype))


def _exchanges(changes: Row, table: Table) -> list[str]:
    """Return the values of --moe-runner-backend that leave it to a pass that asks of no exchange of
    tokens."""
    return [name for name, row in table["moe_backends"].items()
            if "spreads" in row] if changes.get("exchanged") else []


def _rule(changes: Row, method: str, asked: Asked) -> Row:
    """Return what --moe-runner-backend becomes; an empty row where it stays."""
    rules: Sequence[Row] = changes.get("backends", (changes,))
    return next((rule for rule in rules if _fits(rule, method, asked)), NO_RULE)


def _fits(rule: Row, method: str, asked: Asked) -> bool:
    deployment = asked.deployment
    exchanged = "spreads" in asked.table["moe_backends"][deployment.moe_backend]
    if rule.get("untyped") and (deployment.quantization not in (None, UNQUANT)
                                or (deployment.expert_parallel and not exchanged)):
        return False
    if rule.get("alone") and exchanged:
        return False
    return (method in rule.get("methods", (method,))
            and asked.family in rule.get("families", (asked.family,)))


def _copied(changes: Row, asked: Asked) -> str | None:
    """Return --quantization with what the pass writes there."""
    typed = asked.deployment.quantization
    if "copies" in changes:
        made = asked.deployment.moe_backend == AUTO or not changes.get("copies_if_auto")
        return _of_algo(changes, asked) if made and asked.resolved in changes["copies"] else typed
    if typed is None and changes.get("reads", "typed") == "typed":
        return _own_method(changes, asked.table, asked.checkpoint)
    return typed


def _of_algo(changes: Row, asked: Asked) -> str | None:
    """Return the resolved name; the one that means any of ModelOpt's is that of the algorithm."""
    algos: Row = changes.get("algos", {})
    if asked.resolved != MODELOPT or not algos:
        return asked.resolved
    config = asked.checkpoint.config.get("quantization_config")
    if not isinstance(config, Mapping) or "quant_algo" not in config:
        raise NotKnownError("what SGLang's server makes of ModelOpt without a quant_algo",
                            hint="Say quant_algo in config.json's quantization_config.")
    return str(algos.get(str(config["quant_algo"]), algos["other"]))


def _check_activation(changes: Row, method: str, asked: Asked) -> None:
    rule = changes.get("asserts")
    if rule is None or not method.startswith(MODELOPT):
        return
    found = asked.checkpoint.text_config.get(rule["field"], rule["value"])
    if found != rule["value"]:
        raise refuse("flags", "AssertionError", "", None, changes["source"],
                     hint=f"config.json: {rule['field']} is {found}.")


def _of_mixed(changes: Row, method: str, asked: Asked) -> str | None:
    """Return the backend for experts of weight-only NVFP4 in a mixed checkpoint, None without."""
    rule, backend = changes.get("weight_only_experts"), asked.deployment.moe_backend
    if rule is None or method != "modelopt_mixed":
        return None
    config = asked.checkpoint.config.get("quantization_config")
    if config is None and "config_class" in rule:
        raise _unnamed(rule, changes["source"])
    layers = config.get("quantized_layers", {}) if isinstance(config, Mapping) else {}
    if not any(isinstance(row, Mapping) and row.get("quant_algo") == W4A16
               and rule["within"] in name for name, row in layers.items()):
        return None
    if backend not in (AUTO, rule["moe_backend"]):
        raise refuse("flags", "ValueError", rule["says"], None, changes["source"],
                     hint="Drop --moe-backend.")
    return str(rule["moe_backend"])


def _unnamed(rule: Row, source: str) -> Refusal:
    return refuse("flags", "AttributeError", f"{rule['config_class']!r} object has no attribute "
                  "'quantization_config'", None, source,
                  hint="Copy the quantization of hf_quant_config.json into config.json as "
                  "quantization_config.")


def written_method(checkpoint: Checkpoint) -> str | None:
    """Return the quant_method that config.json itself has."""
    config = checkpoint.config.get("quantization_config")
    named = config.get("quant_method") if isinstance(config, Mapping) else None
    return None if named is None else str(named)


def _own_method(changes: Row, table: Table, checkpoint: Checkpoint) -> str | None:
    """Return the name in config.json, into which the canonical one of ModelOpt was written."""
    own = checkpoint.config.get("quantization_config") is not None
    config = quantization_config(table, checkpoint) if own else None
    named = None if config is None else config.get("quant_method")
    if named is None and changes.get("reads_weights") and _has_fp8_experts(table, checkpoint):
        return "fp8"
    return None if named is None else str(named)


def _has_fp8_experts(table: Table, checkpoint: Checkpoint) -> bool:
    """Return whether the first tensor of experts is FP8, as its header says; without headers a
    checkpoint is what its files say of it (utils/common.py:has_fp8_weights_in_checkpoint)."""
    if checkpoint.tensors is None:
        if (quantization_config(table, checkpoint) or {}).get("quant_method") == "modelopt_fp8":
            raise NotKnownError("the dtype of the experts' weights",
                                hint="SGLang reads it from the safetensors headers here: give the "
                                "model's folder.")
        return False
    first = min((name for name in checkpoint.tensors if "experts" in name and "weight" in name),
                default=None)
    return first is not None and checkpoint.tensors[first].dtype == FP8_WEIGHTS
