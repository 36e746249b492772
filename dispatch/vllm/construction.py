"""What model classes ask while they are built, besides the shapes of their layers: rules that
families name (`before` and `after` of a module), and the linear methods that they replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quantplan.dispatch.structure import Structure
from quantplan.dispatch.trace import Layer, refuse
from quantplan.dispatch.vllm.context import Context, Site
from quantplan.dispatch.vllm.experts.mega import check_native

Rule = Callable[[Context, Site], None]
TP_HINT = "Choose another tensor parallel size."


def check_rules(rules: tuple[str, ...], context: Context, site: Site) -> None:
    """Refuse where one of the named rules does."""
    for rule in rules:
        RULES[rule](context, site)


def check_windows(structure: Structure) -> None:
    """Refuse sliding windows that begin at another layer than the last."""
    types, first = structure.layer_types, structure.max_window_layers
    if first is not None and len(set(types or ())) > 1 and first != structure.num_layers:
        raise refuse("config fields", "AssertionError",
                     "Sliding window for some but all layers is not supported. This model uses "
                     f"sliding window but `max_window_layers` = {first} is less than "
                     f"`num_hidden_layers` = {structure.num_layers}. Please open an issue to "
                     "discuss this feature.", None,
                     "model_executor/models/qwen2.py:Qwen2Model.__init__",
                     hint="Set use_sliding_window to false, or max_window_layers to the layers.")


def activation(context: Context, site: Site) -> None:
    """The class computes the activations of the family's `hidden_act` only."""
    structure = context.structure
    acts = structure.accepted_acts
    if acts and structure.hidden_act not in acts:
        raise refuse("layer assignment", "ValueError",
                     f"Unsupported activation: {structure.hidden_act}. Only "
                     f"{structure.acts_said}.", site.path, structure.source)


def experts_per_rank(context: Context, site: Site) -> None:
    """There is at least one expert for every rank."""
    experts, tp = context.structure.sizes.get("experts", 0), context.deployment.tp
    if tp > experts:
        raise refuse("shapes under TP", "ValueError",
                     f"Tensor parallel size {tp} is greater than the number of experts {experts}.",
                     site.path, context.structure.source, hint=TP_HINT)


def expert_groups(context: Context, site: Site) -> None:
    """A grouped top-k needs its groups."""
    facts = site.module.facts
    if facts.get("groups") is None or facts.get("topk_groups") is None:
        raise refuse("layer assignment", "ValueError",
                     "num_expert_group and topk_group must be provided when use_grouped_topk is "
                     "True", site.path, "model_executor/layers/fused_moe/router/router_factory.py:"
                     "create_fused_moe_router", hint="config.json: n_group and topk_group.")


def mamba_ranks(context: Context, site: Site) -> None:
    """Mamba heads divide over the ranks; so do groups, unless there is one."""
    heads, groups, tp = (site.module.facts.get("heads", 0), site.module.facts.get("groups", 1),
                         context.deployment.tp)
    source = "model_executor/layers/mamba/mamba_mixer2.py:MambaMixer2.__init__"
    if heads % tp:
        raise refuse("shapes under TP", "AssertionError",
                     "Tensor parallel world size must divide num heads.", site.path, source,
                     hint=TP_HINT)
    if groups % tp and groups != 1:
        raise refuse("shapes under TP", "AssertionError",
                     "If tensor parallel world size does not divide num_groups, then num_groups "
                     "must equal 1.", site.path, source, hint=TP_HINT)


def heads_per_rank(context: Context, site: Site) -> None:
    """The class divides the heads over the ranks before it builds their projection."""
    heads, tp = site.module.heads, context.deployment.tp
    query = site.module.facts.get("heads", 0) if heads is None else heads.query
    if query % tp:
        raise refuse("shapes under TP", "AssertionError", f"{query} is not divisible by {tp}",
                     site.path, "distributed/utils.py:divide", hint=TP_HINT)


def check_class(context: Context, config_class: str | None) -> None:
    """Refuse a quantization config class with which the model class is not built."""
    for row in context.table["refused_methods"]:
        if config_class in row["config_classes"] and row["models"] in context.structure.source:
            raise refuse("layer assignment", row["type"], row["message"], None, row["source"],
                         hint="Serve another checkpoint of the model.")


def norm_groups(context: Context, site: Site) -> None:
    """The groups of a norm divide over the ranks."""
    groups, tp = site.module.facts["groups"], context.deployment.tp
    text = ("tp_size must be <= group_norm_size for local rms norm" if tp > groups else
            "group_norm_size must be divisible by tp_size")
    if tp > groups or groups % tp:
        raise refuse("shapes under TP", "AssertionError", text, site.path, "model_executor/layers/"
                     "mamba/linear/bailing_linear_attn.py:BailingMoELinearAttention", hint=TP_HINT)


def unreduced_bias(context: Context, site: Site) -> None:
    """A row-parallel layer whose ranks are added later has no bias."""
    if site.module.bias:
        raise refuse("layer assignment", "ValueError", "When not reduce the results, adding bias "
                     "to the results can lead to incorrect results", site.path,
                     "model_executor/layers/linear.py:RowParallelLinear")


RULES: Mapping[str, Rule] = {
    "activation": activation, "experts_per_rank": experts_per_rank,
    "expert_groups": expert_groups, "heads_per_rank": heads_per_rank, "mamba_ranks": mamba_ranks,
    "norm_groups": norm_groups,
    "unreduced_bias": unreduced_bias, "mega_moe": check_native,
}
"""The rules that rows of tables/families name."""


def replaced(context: Context, site: Site, layer: Layer) -> Layer:
    """Return the layer with the method that the model class puts in the place of a plain one."""
    if not str(layer.method).startswith("Unquantized"):
        return layer
    linear = layer.method == "UnquantizedLinearMethod"
    shape, structure = f"{layer.n}x{layer.k}", context.structure
    for row in structure.replaced:
        fits = layer.module == row["module"] if "module" in row else linear
        if (fits and shape in row["shapes"] and context.gpu.capability in row["capabilities"]
                and context.dtype in row["dtypes"]
                and structure.model_type in row["model_types"]):
            return layer._replace(method=row["method"], why=f"{structure.architecture} replaces "
                                  f"the method of {shape} layers ({row['source']})")
    return layer
