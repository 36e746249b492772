"""What every SGLang step reads: the table, the question, and the facts that no layer changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.environment import library_facts, variable_facts
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, capability_family
from quantplan.dispatch.predicates import holds
from quantplan.dispatch.shard import Shard
from quantplan.dispatch.structure import Module, Structure
from quantplan.tables.record import NamedTuple

Table = Mapping[str, Any]


class Context(NamedTuple):
    """One question to one engine version; `facts` are those that hold for every layer, `packed` is
    the model class's own packed_modules_mapping and `renames` its hf_to_sglang_mapper, which most
    classes lack; `choices` are those made so far, by list and by what the layer asks, and `ends`
    the rows of what ends the building of its layers."""

    table: Table
    checkpoint: Checkpoint
    structure: Structure
    gpu: Gpu
    deployment: Deployment
    dtype: str
    facts: Mapping[str, Any]
    packed: Mapping[str, tuple[str, ...]]
    renames: Mapping[str, Mapping[str, str]]
    choices: dict[Any, Any]
    ends: tuple[Mapping[str, Any], ...] = ()


class Site(NamedTuple):
    """One layer about to be built: its path, the module and rank 0's shard."""

    path: str
    layer_index: int | None
    module: Module
    shard: Shard

    @property
    def named(self) -> Site:
        """Return the site at the path that its class says it has, which config classes are asked
        with."""
        known = self.module.known_at(self.layer_index)
        return self if known == self.path else self._replace(path=known)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the layer's sizes as facts."""
        cut = self.shard
        return {"layer.n": cut.n, "layer.k": cut.k, "layer.n_full": cut.n_full,
                "layer.k_full": cut.k_full, "layer.nk": f"{cut.n}/{cut.k}"}


class Assignment(NamedTuple):
    """What a config class decides for a layer: its method and scheme, the list of operators that
    it chooses from (None: it has none) and the facts that these read; `why` says why it is not
    quantized, `refusal` ends the start once all weights are loaded."""

    method: str
    scheme: str | None = None
    operators: str | None = None
    facts: Mapping[str, Any] = {}
    why: str | None = None
    refusal: Exception | None = None


BLACKWELL = 100
"""The first capability that the engine's is_blackwell_supported means."""


def unquantized(why: str) -> Assignment:
    """Return the assignment of a linear layer that stays in 16 bits."""
    return Assignment("UnquantizedLinearMethod", operators="unquantized", why=why)


NO_EXCHANGE = "none"
"""--moe-a2a-backend where none is asked for."""


def base_facts(
    table: Table, gpu: Gpu, deployment: Deployment, dtype: str, moe_backend: str
) -> dict[str, Any]:
    """Return the facts that no layer changes: gpu.*, lib.*, env.*, dtype.model, fp8.backend,
    fp4.backend, moe.backend, moe.named, moe.exchange.

    Raises UsageError for an unknown library.
    """
    facts = {
        "gpu.capability": gpu.capability, "gpu.family": capability_family(gpu.capability),
        "gpu.capability_text": gpu.capability_text, "gpu.name": gpu.name, "dtype.model": dtype,
        "fp8.backend": fp8_backend(table, gpu, deployment.fp8_gemm_backend),
        "moe.backend": table["moe_backends"][moe_backend].get("serves_as", moe_backend),
        "moe.named": moe_backend, "moe.exchange": _exchange(table, deployment),
        **library_facts(table["libraries"], deployment),
        **variable_facts(table["environment"], deployment),
    }
    return {**facts, "fp4.backend": fp4_backend(table, facts, deployment.fp4_gemm_backend)}


def _exchange(table: Table, deployment: Deployment) -> str:
    """Return the exchange of tokens that --moe-backend names."""
    asked = deployment.moe_backend
    return asked if "spreads" in table["moe_backends"][asked] else NO_EXCHANGE


def fp4_backend(table: Table, facts: Mapping[str, Any], asked: str) -> str:
    """Return --fp4-gemm-backend as the scheduler leaves it: auto is the GPU's own."""
    return asked if asked != "auto" else next(
        str(row["backend"]) for row in table["fp4_auto"] if holds(row, facts))


def fp8_backend(table: Table, gpu: Gpu, asked: str) -> str:
    """Return --fp8-gemm-backend as the scheduler leaves it: auto is rewritten on some GPUs."""
    if asked != "auto":
        return asked
    return next((str(row["backend"]) for row in table["fp8_backend_rewrites"]
                 if gpu.capability in row["capabilities"]), asked)
