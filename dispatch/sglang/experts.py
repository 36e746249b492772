"""Routed experts: what one rank holds of them, and the runner that serves them
(layers/moe/fused_moe_triton/layer.py:FusedMoE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.operators import chosen
from quantplan.dispatch.sglang.runners import check_runner_made
from quantplan.dispatch.sglang.serving import Serving
from quantplan.dispatch.trace import Layer, refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

LAYER = "layers/moe/fused_moe_triton/layer.py:FusedMoE.__init__"
PADDED_UNDER = ("flashinfer_trtllm", "flashinfer_trtllm_routed")
PADDED_TO = 128
"""Backends under which FusedMoE rounds the intermediate size of a rank up, and to what."""
NO_RUNNER = "none"
"""Layer.moe_backend of experts whose method makes no MoeRunner."""


SILU = "silu"


class Experts(NamedTuple):
    """What one rank holds: a number of experts of the `total`, and the sizes of each; `tp` ranks
    cut an expert; `gated` experts have a second projection into the activation, and `weighs_input`
    says that routing weights are applied before an expert. Shared experts that are fused count."""

    number: int
    hidden: int
    intermediate: int
    tp: int
    activation: str = SILU
    gated: bool = True
    weighs_input: bool = False
    total: int = 0


def experts_layer(context: Context, serving: Serving, site: Site) -> tuple[Layer, Assignment]:
    """Return the layer of routed experts and what its method decided."""
    held = experts_held(context, site)
    assignment = serving.experts(site, held) or unquantized_experts()
    check_method(context, assignment.method, site)
    _check_activation(context, held, assignment)
    layer = Layer(site.path, site.module.module, layer_index=site.layer_index,
                  method=assignment.method, scheme=assignment.scheme, why=assignment.why,
                  moe_backend=NO_RUNNER, weights=_weights(held, site))
    if assignment.operators is None:
        return layer, assignment
    choice = chosen(context, assignment.operators,
                    {"moe.activation": held.activation, **assignment.facts})
    check_runner_made(context, choice, assignment, site)
    return layer._replace(selection=choice.selection, mode=choice.text("mode"),
                          act=choice.text("act"), why=assignment.why or choice.text("because"),
                          moe_backend=choice.text("runner") or NO_RUNNER,
                          note=choice.failure(site.path, "Name another --moe-backend.")), assignment


def _weights(held: Experts, site: Site) -> int:
    """Return how many weights one rank holds of the layer's experts."""
    matrices = 3 if site.module.facts.get("gated") else 2
    return held.number * held.hidden * held.intermediate * matrices


def _check_activation(context: Context, held: Experts, assignment: Assignment) -> None:
    """Raise NotKnownError for experts of other than gated SiLU, where the table does not say that
    the method serves them too."""
    part = context.table["operators"].get(assignment.operators, {})
    known: Sequence[str] = part.get("activations", ())
    if (held.activation, held.gated) != (SILU, True) and held.activation not in known:
        raise NotKnownError(f"SGLang's {assignment.method} with the activation {held.activation}",
                            wanted=", ".join((SILU, *known)),
                            hint="Such experts are not in SGLang's table yet.")


def experts_held(context: Context, site: Site) -> Experts:
    """Return what one rank holds; refuses where ranks do not divide experts or their sizes."""
    facts, ranks = site.module.facts, context.deployment.tp
    ep = ranks if context.deployment.expert_parallel else 1
    tp = ranks // ep
    _check_ranks(site, tp, facts)
    for size, parts in ((facts["experts"], ep), (facts["intermediate"], tp)):
        if size % parts:
            raise refuse("shapes under TP", "AssertionError", "", site.path, LAYER,
                         hint=f"Choose a number of ranks that divides {size}.")
    cut = facts["intermediate"] // tp
    if context.facts["moe.backend"] in PADDED_UNDER:
        cut += -cut % PADDED_TO
    fused = context.facts["moe.fused"]
    return Experts(facts["experts"] // ep + fused, facts["hidden"], cut, tp,
                   str(facts.get("activation")), bool(facts.get("gated")),
                   bool(facts.get("router_weight_on_input")), facts["experts"] + fused)


def _check_ranks(site: Site, tp: int, facts: Mapping[str, Any]) -> None:
    if tp > facts["experts"]:
        raise refuse("shapes under TP", "ValueError", f"Tensor parallel size {tp} is greater than "
                     f"the number of experts {facts['experts']}.", site.path, LAYER,
                     hint="Use fewer ranks.")


def unquantized_experts(why: str | None = None, told: str = "all") -> Assignment:
    """Return the assignment of experts that stay in 16 bits; `told` is what the method is told of
    the backend: all, trtllm (not DeepGEMM), or nothing."""
    return Assignment("UnquantizedFusedMoEMethod", operators="experts_unquantized",
                      facts={"moe.told": told}, why=why)


def check_method(context: Context, method: str, site: Site) -> None:
    """Refuse experts of another method than the only one that the backend serves."""
    only = context.table["moe_backends"][context.facts["moe.named"]].get("only")
    if only is not None and method != only["method"]:
        raise refuse("kernel selection", only["type"], only["message"].replace("{method}", method),
                     site.path, only["source"], hint="Drop --moe-backend.")


def check_backend_is_auto(context: Context, site: Site, source: str, method: str) -> None:
    """Refuse a backend that was asked for: the scheme of the method asserts that there is none."""
    check_method(context, method, site)
    if context.facts["moe.backend"] != "auto":
        raise refuse("kernel selection", "AssertionError", "", site.path, source,
                     hint="Leave --moe-backend at auto: Marlin serves these experts.")


def wna16_experts(
    held: Experts, site: Site, bits: int, group_size: int, why: str | None = None
) -> Assignment:
    """Return the assignment of MoeWNA16Method, which halves groups until they fit the sizes
    (layers/quantization/moe_wna16.py:MoeWNA16Method.create_weights)."""
    source = "layers/quantization/moe_wna16.py:MoeWNA16Method.create_weights"
    size = group_size
    if size == 0:
        raise NotKnownError("SGLang's WNA16 experts in groups of 0",
                            hint="The engine fails there while it makes the layer.")
    while held.intermediate % size or held.hidden % size:
        size //= 2
        if size < WNA16_GROUP:
            raise refuse("shapes under TP", "AssertionError", "", site.path, source,
                         hint="Use fewer tensor parallel ranks.")
    if size < 0:
        shape = [held.number, 2 * held.intermediate, held.hidden // size]
        raise refuse("layer assignment", "RuntimeError", "Trying to create tensor with negative "
                     f"dimension {shape[-1]}: {shape}", site.path, source,
                     hint="Serve a checkpoint of groups: one scale per column is not served here.")
    return Assignment("MoeWNA16Method", operators=f"experts_wna16_w{bits}", why=why)


WNA16_GROUP = 32
"""The smallest group that MoeWNA16Method takes where it makes them smaller."""


def marlin_serves_experts(context: Context, held: Experts, group_size: int) -> bool:
    """Return whether Marlin serves the experts
    (layers/quantization/marlin_utils.py:check_moe_marlin_supports_layer)."""
    row = context.table["marlin"]
    return (held.activation in row["experts_acts"] and not held.weighs_input
            and held.hidden % row["experts_n"] == 0
            and held.intermediate % max(row["experts_k"], group_size) == 0
            and group_size in row["group_sizes"])
