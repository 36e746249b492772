"""SGLang's start-up in its own order: names, dtype, config class, then every layer with the
operator that it calls. Each step either answers or refuses with the engine's own error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.config_laws import check_laws
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.model_types import HUB, check_type
from quantplan.dispatch.sglang.attention import server_attention
from quantplan.dispatch.sglang.attention_layers import (
    Attended,
    attended,
    attention_layer,
    attention_notes,
    keeps_cache,
)
from quantplan.dispatch.sglang.context import Assignment, Context, Site, Table, base_facts
from quantplan.dispatch.sglang.dtypes import device_dtype, model_dtype
from quantplan.dispatch.sglang.ends import check_ends, ends
from quantplan.dispatch.sglang.experts import experts_layer
from quantplan.dispatch.sglang.findings import TYPED, Told, findings
from quantplan.dispatch.sglang.flags import check_flags, check_runner, renamed, spread
from quantplan.dispatch.sglang.mamba import check_ranks
from quantplan.dispatch.sglang.models import (
    built,
    changed,
    fused_experts,
    fuses_shared_experts,
    language_class,
    lifted,
    model_row,
    row_under,
)
from quantplan.dispatch.sglang.names import name_method
from quantplan.dispatch.sglang.operators import chosen, refused_after_loading
from quantplan.dispatch.sglang.registry import check_registered, served_class
from quantplan.dispatch.sglang.server import server_arguments
from quantplan.dispatch.sglang.serving import Serving, serve
from quantplan.dispatch.sglang.single_experts import with_single_experts
from quantplan.dispatch.sglang.sites import check_before, check_division, site_at
from quantplan.dispatch.sglang.uneven import check_even
from quantplan.dispatch.trace import EngineError, Layer, Method, Refusal, Step, Trace, refuse
from quantplan.tables.errors import NotKnownError

CONFIGS = "utils/hf_transformers/config.py:get_config"
EMBEDDING = Assignment("UnquantizedEmbeddingMethod")
HEAD = Assignment("UnquantizedEmbeddingMethod", operators="unquantized")
PLAIN = Assignment("UnquantizedLinearMethod", operators="unquantized")
BARE = Assignment("UnquantizedLinearMethod")
"""What layers are without a method of their config class."""
CONVOLUTION = "conv1d"
"""The name of a Mamba mixer's convolution."""


def resolve(checkpoint: Checkpoint, table: Table, gpu: Gpu, deployment: Deployment) -> Trace:
    """Return what this SGLang version would do. The outcome covers everything up to and including
    the weights' post-processing."""
    deployment = renamed(table, deployment)
    check_flags(table, deployment)
    checkpoint = lifted(table, checkpoint)
    dtype = model_dtype(checkpoint, deployment.dtype)
    method, kv_cache = Method(requested=deployment.quantization), _kv(deployment, None)
    layers: tuple[Layer, ...] = ()
    error: EngineError | None = None
    attends: Attended | None = None
    try:
        hub = "<hub>" if checkpoint.origin == "mapping" else HUB  # as <model> stands for its folder
        deployment = spread(table, gpu, deployment)
        check_runner(table, checkpoint, deployment.moe_backend)
        check_type(table, checkpoint, deployment, ("ValueError", CONFIGS, hub))
        check_laws(table, checkpoint)
        check_even(table, checkpoint)
        named = name_method(table, checkpoint, deployment.quantization, gpu.capability)
        method = Method(named.checkpoint, deployment.quantization, named.resolved,
                        steps=named.steps)
        row = model_row(table, checkpoint)
        attention = server_attention(table, checkpoint, gpu, deployment)
        _check_server(table, named.resolved, gpu)
        server = server_arguments(table, checkpoint, gpu, deployment, (row, named.resolved))
        if server.quantization != deployment.quantization:
            method = method._replace(steps=(_typed(row, server.quantization),))
            named = name_method(table, checkpoint, server.quantization, gpu.capability)
        method = method._replace(resolved=named.resolved, steps=(*method.steps, *(
            step for step in named.steps if step not in method.steps)))
        named_row, row = row, row_under(table, row, named.resolved)
        dtype = device_dtype(table, gpu, server.dtype or dtype)
        check_registered(table, checkpoint)
        context = Context(table, checkpoint, built(checkpoint, named_row), gpu,
                          deployment, dtype,
                          {**base_facts(table, gpu, deployment, dtype, server.moe_backend),
                           "experts.format": server.experts_format,
                           "moe.routing": row.get("says_routing", False)},
                          {name: tuple(leaves) for name, leaves in row.get("packed", {}).items()},
                          row.get("renames", {}), {},
                          ends(table, row, str(served_class(table, checkpoint))))
        serving = serve(named, context)
        method = method._replace(config_class=serving.config_class,
                                 min_capability=serving.min_capability)
        attends = attended(context, attention, serving)
        kv_cache = _kv(deployment, attends)
        context = _built(context, row, {
            **context.facts, "quant.method": named.resolved, "quant.block": serving.block,
            "quant.fuses_shared": serving.fuses_shared,
            "model.language": language_class(checkpoint)})
        layers = tuple(_layers(context, serving, attends))
    except Refusal as refusal:
        error = refusal.error
    conditional = any(x.selection and x.selection.alternatives for x in layers)
    outcome = "error" if error else "conditional" if conditional else "ok"
    notes = attention_notes(table, attends) if attends and not error else ()
    found = findings(Told(table, checkpoint, gpu, method, layers, error, deployment.env),
                     notes)
    return Trace("sglang", table["version"], dtype, method, outcome, layers if not error else (),
                 error, found, kv_cache)


def _built(context: Context, row: Mapping[str, Any], facts: dict[str, Any]) -> Context:
    """Return the context with SGLang's own modules, and how many shared experts are among the
    routed ones; `facts` are those of the method too."""
    checkpoint, deployment = context.checkpoint, context.deployment
    sizes = context.structure.sizes
    fused = fuses_shared_experts(row, checkpoint, deployment, sizes, facts)
    structure = changed(context.structure, row, checkpoint, {**facts, "model.shared_fused": fused})
    return context._replace(
        structure=with_single_experts(structure, row, deployment.tp),
        facts={**context.facts, "moe.fused": fused_experts(row, sizes) if fused else 0})


def _typed(row: Mapping[str, Any], name: str | None) -> Step:
    """Return the step that makes the checkpoint's own name count as one that was asked for."""
    return Step(TYPED, f"--quantization {name}", "the architecture's pass on this GPU copies the "
                "checkpoint's name into the arguments, from which the model's config is read again",
                str(row["server_pass"]["source"]))


def _kv(deployment: Deployment, attends: Attended | None) -> dict[str, Any]:
    asked = deployment.kv_cache_dtype
    if attends is None:
        return {"requested": asked, "method": None, "resolved": asked}
    return {"requested": asked, "method": attends.method, "resolved": attends.dtype,
            "page_size": attends.attention.page_size}


def _check_server(table: Table, resolved: str | None, gpu: Gpu) -> None:
    """Refuse what ServerArgs refuses of the method before any layer is built."""
    row = table["methods"].get(resolved, {}).get("served_on")
    if row is not None and gpu.capability not in row["capabilities"]:
        raise refuse("flags", row["type"], row["message"], None, row["source"],
                     hint="Drop --quantization here.")


def _layers(context: Context, serving: Serving, attends: Attended) -> list[Layer]:
    """Return every layer, or refuse as the first whose weights are refused after loading."""
    made = list(_made(context, serving, attends))
    for layer, assignment in made:
        if assignment is not None and assignment.refusal is not None:
            raise _at(assignment.refusal, layer.path)
    return [layer for layer, _ in made]


def _at(refusal: Exception, path: str) -> Exception:
    """Return what ends the start once weights are loaded with the layer's path in the model, which
    need not be the one that config classes are asked with."""
    if isinstance(refusal, Refusal):
        return Refusal(refusal.error._replace(layer=path))
    return refusal


def _made(
    context: Context, serving: Serving, attends: Attended
) -> Iterator[tuple[Layer, Assignment | None]]:
    built: dict[str, Layer] = {}
    for module, index in context.structure.sites():
        if module.kind != "norm":
            check_ends(context.ends, context.checkpoint, module.path, {})
            made = _layer(context, serving, attends, site_at(module, index, context.deployment.tp))
            built[module.path] = made[0]
            yield made
            check_ends(context.ends, context.checkpoint, module.path, built)


def _layer(
    context: Context, serving: Serving, attends: Attended, site: Site
) -> tuple[Layer, Assignment | None]:
    module = site.module
    if module.kind == "attention":
        if keeps_cache(context.table, site) and module.quantized:
            serving.check_attention(site)
        return attention_layer(context.table, attends, site), None
    if module.kind == "experts":
        return experts_layer(context, serving, site)
    if not module.leaves:
        raise NotKnownError(f"SGLang's {module.module}",
                            hint="Such modules are not in SGLang's table yet.")
    check_before(context, site)
    check_ranks(context, site, serving.config_class)
    check_division(site, context.deployment.tp)
    return _linear(context, serving, site)


def _plain(site: Site) -> Assignment:
    """Return what a layer is without a method of the config class. A convolution's weight is not
    multiplied by the layer itself."""
    if site.module.name == CONVOLUTION:
        return BARE
    if site.module.module == "ParallelLMHead":
        return HEAD
    return EMBEDDING if site.module.split == "vocab" else PLAIN


def _linear(context: Context, serving: Serving, site: Site) -> tuple[Layer, Assignment]:
    quantized = site.module.quantized_under(serving.config_class)
    assignment = (serving.assign(site) if quantized else None) or _plain(site)
    if site.module.module == "ParallelLMHead" and context.structure.tied and (
            assignment.method not in (HEAD.method, PLAIN.method)):
        raise NotKnownError("a quantized lm_head whose weight is the embedding's",
                            hint="The class sets the embedding in its place, unquantized.")
    layer = Layer(site.path, site.module.module, site.shard.n, site.shard.k, site.layer_index,
                  assignment.method, assignment.scheme, why=assignment.why)
    operators = assignment.operators
    if operators is None:
        return layer, assignment
    own = {**site.facts, **assignment.facts}
    assignment = assignment._replace(refusal=assignment.refusal or refused_after_loading(
        context.table, operators, {**context.facts, **own}, site.path))
    choice = chosen(context, operators, own)
    row = choice.row or {}
    return layer._replace(selection=choice.selection, mode=row.get("mode"), act=row.get("act"),
                          why=assignment.why or row.get("because"),
                          asked=assignment.facts.get("fp8.act"), fused=row.get("fused"),
                          kernel_backend=row.get("kernel_backend"),
                          note=choice.failure(site.path)), assignment
