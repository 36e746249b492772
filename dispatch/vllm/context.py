"""What every vLLM step reads: the table, the question, and the facts that no layer changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.environment import library_facts, variable_facts
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, capability_family
from quantplan.dispatch.shard import Shard
from quantplan.dispatch.structure import TEXT, Module, Structure
from quantplan.dispatch.trace import Finding
from quantplan.tables.engine_loading import versions_with
from quantplan.tables.record import NamedTuple

Table = Mapping[str, Any]
FP8_TENSOR_CORES_MIN = 89
"""NVIDIA Ada and Hopper whitepapers: the first FP8 tensor cores are those of 8.9 and 9.0."""


class Context(NamedTuple):
    """One question to one engine version; `facts` are those that hold for every layer, `walks` the
    selections already made for a set of layer facts (layers repeat)."""

    table: Table
    checkpoint: Checkpoint
    structure: Structure
    gpu: Gpu
    deployment: Deployment
    dtype: str
    facts: Mapping[str, Any]
    walks: dict[Any, Any]


def at_site(context: Context, site: Site) -> Context:
    """Return the question as the engine has it while it builds the site: outside the language
    model, fused names are those of the class around it, and some modules have their own dtype."""
    structure, dtype = context.structure, site.module.dtype
    if dtype is not None:
        context = context._replace(dtype=dtype, facts={**context.facts, "dtype.model": dtype},
                                   walks={})
    if structure.packed_outside is None or site.module.stack == TEXT:
        return context
    return context._replace(structure=structure._replace(packed=structure.packed_outside))


class Site(NamedTuple):
    """One layer about to be built: the name that the engine gives it (its prefix, by which
    quantization configs and error texts know it), the module and rank 0's shard."""

    path: str
    layer_index: int | None
    module: Module
    shard: Shard

    @property
    def name(self) -> str:
        """Return the last part of the module's path: qkv_proj, lm_head."""
        return self.module.name

    @property
    def blamed(self) -> str | None:
        """Return the path that an error names: none while the embedding is built, which is no
        linear layer."""
        return None if self.module.split == "vocab" and not self.is_head else self.path

    @property
    def is_head(self) -> bool:
        """Return whether the layer is the model's head, which some methods quantize."""
        return self.module.module == "ParallelLMHead"

    @property
    def module_path(self) -> str:
        """Return where the layer stands in the engine's module tree."""
        return self.module.path_at(self.layer_index)


class Assignment(NamedTuple):
    """What a config class decides for a layer before any kernel is looked for.

    `family` None means no kernel list (unquantized, or a method with one fixed path, whose `mode`
    is given). `quant` are the facts that the family's requirements read. `otherwise` makes
    what is asked for when no kernel takes this; `late` refuses what is refused once a kernel is
    known; `note` is what is known to come of it later; `source` is what the checkpoint has made of
    a layer that is quantized again; `wanted` are the checkpoint's own activations
    where kernels are asked for others.
    """

    method: str
    scheme: str | None = None
    family: str | None = None
    quant: Mapping[str, Any] = {}
    act: str | None = None
    mode: str | None = None
    why: str | None = None
    otherwise: Callable[[], Assignment] | None = None
    late: Callable[[], None] | None = None
    note: Finding | None = None
    source: Assignment | None = None
    wanted: str | None = None


def base_facts(
    table: Table, checkpoint: Checkpoint, gpu: Gpu, deployment: Deployment, dtype: str
) -> dict[str, Any]:
    """Return the facts that no layer changes: gpu.*, lib.*, env.*, flag.*, dtype.model, model.type.

    Raises UsageError for an unknown library.
    """
    return {
        "gpu.platform": "cuda",
        **capability_facts(gpu.capability),
        "gpu.name": gpu.name,
        "gpu.capability_text": gpu.capability_text,
        "gpu.prefers_humming": gpu.capability in table["promotion"]["capabilities"],
        "flag.moe_backend": deployment.moe_backend,
        "dtype.model": dtype,
        "model.type": str(checkpoint.text_config.get("model_type", "")),
        **library_facts(table["libraries"], deployment),
        **variable_facts(table["environment"], deployment),
    }


def capability_facts(capability: int) -> dict[str, Any]:
    """Return the gpu.* facts that follow from a capability x 10 alone."""
    return {"gpu.capability": capability, "gpu.family": capability_family(capability),
            "gpu.below_80": capability < 80,
            "gpu.fp8_tensor_cores": capability >= FP8_TENSOR_CORES_MIN}


def trait(table: Table, name: str) -> Any:
    """Return what this version does where a Python rule asks: the value of a row of `traits`."""
    return table["traits"][name]["value"]


def served_by(name: str) -> str:
    """Return the versions whose table has a true trait of that name, for hints of refusals."""
    found = versions_with("vllm", name)
    return " or ".join(f"vLLM {version}" for version in found) or "another version"
