"""One RoutedExperts layer: its method, the walk over its backends, and what it computes."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.candidates import check_readable
from quantplan.dispatch.predicates import applies, fill
from quantplan.dispatch.trace import Layer, Refusal, refuse
from quantplan.dispatch.vllm.context import Context, Site
from quantplan.dispatch.vllm.coverage import check_experts, check_kernel
from quantplan.dispatch.vllm.experts.facts import experts_of
from quantplan.dispatch.vllm.experts.order import BackendError
from quantplan.dispatch.vllm.experts.plan import NO_KEY, Experts, Facts, Plan
from quantplan.dispatch.vllm.experts.walk import Walked, walk
from quantplan.dispatch.vllm.serving import Serving
from quantplan.dispatch.vllm.tuned import tuned_file

UNKNOWN = "unknown"
"""Stands for the backend where facts that are not known decide."""


def experts_layer(context: Context, serving: Serving, site: Site) -> Layer:
    """Return the routed experts at `site`, or refuse as the engine does."""
    experts = experts_of(context, site)
    quantized = not serving.config_class or site.module.quantized
    plan = serving.assign_experts(experts) if quantized else Plan(
        "UnquantizedFusedMoEMethod", why="built without the quantization config")
    check_experts(context, plan.method, experts.facts)
    if plan.source:
        _served(experts, plan.source)
    walked = _served(experts, plan)
    selection, mode, tuned = walked.selection, None, None
    if selection.kernel is not None:
        check_kernel(context.table, selection.kernel)
        facts = {**context.facts, **experts.facts, **plan.quant, "quant.weight_key": plan.weight,
                 "moe.weight_only": plan.weight_only}
        mode = _mode(plan, walked, facts, context.table)
        tuned = tuned_file(context, selection.kernel, facts)
    return Layer(site.module_path, site.module.module, layer_index=site.layer_index,
                 method=plan.method, mode=mode, selection=selection,
                 why=plan.why or _why(plan, walked, context.table),
                 moe_backend=walked.backend or UNKNOWN, weights=_weights(experts.facts),
                 asked=plan.act if plan.asks and plan.act != NO_KEY else None, tuned=tuned)


def _served(experts: Experts, plan: Plan) -> Walked:
    """Return the walk of a plan that the engine goes through with, or refuse."""
    walked = _walk(experts, plan)
    if walked.error:
        raise _refusal(experts, plan, walked.error, walked)
    if walked.backend and plan.after:
        plan.after(experts, walked.backend, str(walked.selection.kernel))
    return walked


def _weights(facts: Facts) -> int:
    """Return how many weights one rank holds of the layer's experts."""
    matrices = 3 if facts["moe.gated"] else 2
    return int(facts["moe.local_experts"] * facts["moe.hidden"] * facts["moe.shard"] * matrices)


def _walk(experts: Experts, plan: Plan) -> Walked:
    context = experts.context
    key = ("experts", plan.list_id, plan.weight, plan.act, plan.first_class, *plan.quant.values(),
           *experts.facts.values())
    found = context.walks.get(key)
    if found is None:
        facts = {**context.facts, **experts.facts}
        try:
            found = walk(context.table, plan, facts, context.deployment.env)
            check_readable(list(found.selection.candidates), facts)
        except BackendError as refused:
            raise _refusal(experts, plan, refused) from None
        except Refusal as refusal:
            raise Refusal(refusal.error._replace(layer=experts.prefix)) from None
        context.walks[key] = found
    return found


def _refusal(
    experts: Experts, plan: Plan, refused: BackendError, walked: Walked | None = None
) -> Refusal:
    source = experts.context.table["experts_lists"][plan.list_id]["source"]
    hint = ("Drop --moe-backend where it is set, or choose another format, GPU or tensor parallel "
            "size; -v shows every class's checks.")
    return refuse("kernel selection", refused.kind, refused.message, experts.prefix, source, hint,
                  walked.selection if walked else None)


def _why(plan: Plan, walked: Walked, table: Any) -> str | None:
    """Return why activations stay in 16 bits though the method asks for fewer: what the GPU lacks,
    else the last class in front of the chosen one that would have quantized them."""
    classes, selection = table["experts_classes"], walked.selection
    chosen = classes.get(selection.kernel, {})
    if plan.act == NO_KEY or not chosen.get("weight_only"):
        return None
    better = [(c.kernel, c.decisive) for c in selection.rejected
              if c.decisive and c.decisive.fact != "gpu.platform"
              and not classes[c.kernel].get("weight_only")]
    plain = next((check.plain for _, check in better if check.plain), None)
    return plain or (f"{better[-1][0]} is out: {better[-1][1].text}" if better else None)


def _mode(plan: Plan, walked: Walked, facts: Facts, table: Any) -> str | None:
    """Return what the chosen class computes, or None when the environment or the method decides
    its activations."""
    row = table["experts_classes"][walked.selection.kernel]
    if table["experts_lists"][plan.list_id].get("lenient"):
        return None
    if "mode" in row:
        special = (m for m in row.get("mode_when", ())
                   if applies(m["when"], {"quant.weight_key": plan.weight}))
        return str(next(special, row)["mode"])
    act = NO_KEY if row.get("weight_only") else walked.act
    if row.get("own_activations"):
        if plan.own_act == NO_KEY and facts["env.VLLM_HUMMING_INPUT_QUANT_CONFIG"]:
            return None
        act = plan.own_act
    found = (m["mode"] for m in table["experts_modes"]
             if plan.weight in m["weights"] and act in m["act"] and applies(m.get("when"), facts))
    return fill(next(found), facts)
