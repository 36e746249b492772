"""What the server makes of its arguments before any config class is asked: the architecture's own
pass, then the rules between method and MoE runner (arg_groups/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.environment import variable_facts
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, capability_family
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.expert_formats import backend_of_experts, experts_format
from quantplan.dispatch.sglang.names import UNQUANT, quantization_config
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

Row = Mapping[str, Any]
NONE = "none"
"""How rows spell no quantization."""
FP8_WEIGHTS = "F8_E4M3"


class Server(NamedTuple):
    """The server arguments --quantization, --moe-runner-backend and --kv-cache-dtype as they are in
    the end, and the format of the routed experts."""

    quantization: str | None
    moe_backend: str
    kv_cache_dtype: str
    experts_format: str


def server_arguments(
    table: Table, checkpoint: Checkpoint, gpu: Gpu, deployment: Deployment, model: Row,
    *, resolved: str | None,
) -> Server:
    """Return the arguments, or refuse as the server does. `model` is the model class' row,
    `resolved` the method's final name."""
    changes, family = model.get("server_pass"), capability_family(gpu.capability)
    form = experts_format(model, checkpoint, variable_facts(table["environment"], deployment))
    server = Server(deployment.quantization, deployment.moe_backend,
                    _kv_cache_dtype(model, checkpoint, gpu, deployment.kv_cache_dtype), form)
    if server.moe_backend == "auto":
        server = server._replace(moe_backend=backend_of_experts(model, form, family))
    if changes is not None and family in changes["families"]:
        server = (_passed_resolved(changes, resolved, server) if changes.get("resolved") else
                  _passed(changes, table, checkpoint, server))
    typed = None if server.quantization == UNQUANT else server.quantization
    server = server._replace(moe_backend=_rewritten(table, typed, family, server.moe_backend))
    row = table["moe_backends"][server.moe_backend]
    if "takes" in row and (typed or NONE) not in row["takes"]:
        raise refuse("flags", "AssertionError", row["says"].replace("{method}", str(typed)), None,
                     table["moe_backends_source"],
                     hint="Drop --moe-backend, or name a method that it takes.")
    return server


def _passed_resolved(changes: Row, resolved: str | None, server: Server) -> Server:
    """Return the arguments after a pass that only some methods change."""
    fits = resolved in changes["methods"] and server.moe_backend == "auto"
    return server._replace(quantization=resolved,
                           moe_backend=changes["moe_backend"]) if fits else server


def _kv_cache_dtype(model: Row, checkpoint: Checkpoint, gpu: Gpu, asked: str) -> str:
    """Return --kv-cache-dtype after the architecture's pass, which has a default of its own and
    takes few values (arg_groups/overrides.py:_dsa_kv_cache_dtype_default)."""
    row = model.get("kv_cache")
    if row is None or ("of" in row and checkpoint.config.get(row["of"]) is None):
        return asked
    named = str(row["auto"] if gpu.capability >= row["min_capability"] else row["below"]
                ) if asked == "auto" else asked
    if named not in row["takes"]:
        raise refuse("flags", "AssertionError", row["says"].replace("{dtype}", named), None,
                     row["source"], hint="--kv-cache-dtype: " + " or ".join(row["takes"]) + ".")
    return named


def _passed(changes: Row, table: Table, checkpoint: Checkpoint, server: Server) -> Server:
    """Return the arguments after the architecture's pass: the checkpoint's own method counts as
    typed, and the backend is no longer auto for some methods."""
    named = server.quantization
    if named is None:
        named = _own_method(changes, table, checkpoint)
        server = server._replace(quantization=named)
    method = NONE if named in (None, UNQUANT) else named
    if method in changes.get("not_known", ()):
        raise NotKnownError(f"what SGLang's server makes of {method} with this model class here",
                            hint="The formats of its experts decide, which no rule reads yet.")
    auto = server.moe_backend == "auto" and method in changes["methods"]
    return server._replace(moe_backend=changes["moe_backend"]) if auto else server


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


def _rewritten(table: Table, typed: str | None, family: int, backend: str) -> str:
    row = next((row for row in table["moe_backend_rewrites"]
                if row["method"] == typed and backend not in row["keeps"]
                and family in row.get("families", (family,))), None)
    if row is None:
        return backend
    if "refuses" in row and backend != "auto":
        raise refuse("flags", "ValueError", row["refuses"], None, row["source"],
                     hint="Drop --moe-backend.")
    return str(row["backend"])
