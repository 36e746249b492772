"""What the server makes of its arguments before any config class is asked: the architecture's own
pass, then the rules between method and MoE runner (arg_groups/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.environment import variable_facts
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, capability_family
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.expert_formats import backend_of_experts, experts_format
from quantplan.dispatch.sglang.names import UNQUANT
from quantplan.dispatch.sglang.server_passes import AUTO, NONE, Asked, Server, passed
from quantplan.dispatch.trace import refuse

Row = Mapping[str, Any]


def server_arguments(
    table: Table, checkpoint: Checkpoint, gpu: Gpu, deployment: Deployment,
    served: tuple[Row, str | None],
) -> Server:
    """Return the arguments, or refuse as the server does. `served` are the model class' row and the
    method's name after all overrides."""
    (model, resolved), family = served, capability_family(gpu.capability)
    form = experts_format(model, checkpoint, variable_facts(table["environment"], deployment))
    server = Server(deployment.quantization, deployment.moe_backend, form)
    if server.moe_backend == AUTO:
        server = server._replace(moe_backend=backend_of_experts(model, form, family))
    if "server_pass" in model:
        server = passed(model["server_pass"], server,
                        Asked(table, checkpoint, deployment, family, resolved))
    typed = None if server.quantization == UNQUANT else server.quantization
    server = server._replace(moe_backend=_rewritten(table, typed, family, server.moe_backend))
    row = table["moe_backends"][server.moe_backend]
    if "takes" in row and (typed or NONE) not in row["takes"]:
        raise refuse("flags", "AssertionError", row["says"].replace("{method}", str(typed)), None,
                     table["moe_backends_source"],
                     hint="Drop --moe-backend, or name a method that it takes.")
    if "refused" in row:
        raise refuse("flags", row["refused"]["type"], row["refused"]["message"], None,
                     row["refused"]["source"], hint="Drop --moe-backend.")
    whole = row.get("whole_experts", {})
    if deployment.expert_parallel and deployment.tp > 1 and typed in whole.get("methods", ()):
        raise refuse("flags", "AssertionError", whole["says"], None, table["moe_backends_source"],
                     hint="Drop --moe-backend, or expert parallelism.")
    return server._replace(dtype=model.get("dtype", server.dtype))


def _leaves(row: Row, backend: str) -> bool:
    """Return whether the row gives a backend up."""
    return backend in row["asked"] if "asked" in row else backend not in row["keeps"]


def _rewritten(table: Table, typed: str | None, family: int, backend: str) -> str:
    row = next((row for row in table["moe_backend_rewrites"]
                if row["method"] == typed and _leaves(row, backend)
                and family in row.get("families", (family,))), None)
    if row is None:
        return backend
    if "refuses" in row and table["moe_backends"][backend].get("serves_as", backend) != AUTO:
        raise refuse("flags", "ValueError", row["refuses"], None, row["source"],
                     hint="Drop --moe-backend.")
    return str(row["backend"])
