"""vLLM's start-up in its own order: flags, dtype, method name, heads, config class, then every
layer. Each step either answers or refuses with the engine's own error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.dispatch import pins
from quantplan.dispatch.environment import readable
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.structure import Structure
from quantplan.dispatch.trace import (
    SEVERITIES,
    EngineError,
    Finding,
    Layer,
    Method,
    Refusal,
    Selection,
    Trace,
    refuse,
)
from quantplan.dispatch.vllm import coverage
from quantplan.dispatch.vllm.attention import attention_layer, with_attention
from quantplan.dispatch.vllm.attention_config import backend_name, check_config, check_encoder
from quantplan.dispatch.vllm.construction import check_class, check_rules, check_windows, replaced
from quantplan.dispatch.vllm.context import Assignment, Context, Site, Table, at_site, base_facts
from quantplan.dispatch.vllm.dtype import dtype_refused, resolve_dtype
from quantplan.dispatch.vllm.experts.count import check_experts
from quantplan.dispatch.vllm.experts.mega import check_model, native
from quantplan.dispatch.vllm.findings import findings
from quantplan.dispatch.vllm.flags import check_flags
from quantplan.dispatch.vllm.float_kv import check_float_kv
from quantplan.dispatch.vllm.kv_cache import check_packed
from quantplan.dispatch.vllm.mode import mode_of
from quantplan.dispatch.vllm.names import name_method
from quantplan.dispatch.vllm.of_version import check_sparse, check_tied, of_version
from quantplan.dispatch.vllm.online_args import given_args
from quantplan.dispatch.vllm.patterns import (
    dynamic_findings,
    ignore_findings,
    listed_findings,
    target_findings,
    wildcard_findings,
)
from quantplan.dispatch.vllm.serving import WITHOUT_CONFIG, Serving, serve
from quantplan.dispatch.vllm.sites import check_division, site_at
from quantplan.dispatch.vllm.start import architecture, check_start, code_findings
from quantplan.dispatch.vllm.stored import stored_findings
from quantplan.dispatch.vllm.tuned import tuned_file


def resolve(checkpoint: Checkpoint, table: Table, gpu: Gpu, deployment: Deployment) -> Trace:
    """Return what this vLLM version would do. The outcome covers everything up to and including
    model construction, and the worker's own check of the dtype; what fails later is a finding."""
    check_flags(table, deployment)
    coverage.check_question(table, checkpoint, deployment)
    try:
        check_config(table, deployment)
        given_args(table, deployment)
        check_start(table, checkpoint, deployment)
        dtype = resolve_dtype(table, checkpoint, gpu, deployment.dtype)
    except Refusal as refusal:
        return _never_began(table, checkpoint, deployment, refusal.error)
    structure = of_version(table, checkpoint, deployment, model_structure(
        checkpoint, architecture(table, checkpoint.config.get("architectures") or ())))
    coverage.check_modules(table, structure)
    facts = base_facts(table, checkpoint, gpu, deployment, dtype)
    context = Context(table, checkpoint, structure, gpu, deployment, dtype, facts, {})
    coverage.check_latent(context)
    method = Method(requested=deployment.quantization)
    try:
        check_encoder(table, checkpoint, deployment)
        named = name_method(table, checkpoint, deployment, gpu.capability)
        method = Method(named.checkpoint, deployment.quantization, steps=named.steps)
        coverage.check_method(table, named, deployment)
        readable("VLLM_BATCH_INVARIANT", facts)
        check_float_kv(context)
        check_packed(context)
        backend_name(table, deployment)
        _check_heads(structure, deployment.tp)
        check_experts(context)
        serving = serve(named, context)
        check_model(context)
        context = with_attention(context, serving)
    except Refusal as refusal:
        return _trace(context, method, (), refusal.error, None)
    method = Method(named.checkpoint, deployment.quantization, named.resolved,
                    serving.config_class, serving.min_capability, named.steps)
    layers: list[Layer] = []
    try:
        check_class(context, serving.config_class)
        check_tied(context)
        check_windows(structure)
        layers.extend(_build(context, serving))
        check_sparse(context)
    except Refusal as refusal:
        return _trace(context, method, (), refusal.error, serving)
    return _trace(context, method, tuple(layers), dtype_refused(table, checkpoint, gpu, dtype),
                  serving)


def _never_began(
    table: Table, checkpoint: Checkpoint, deployment: Deployment, error: EngineError
) -> Trace:
    """Return the trace of a start-up that ends before the model's dtype is known."""
    return Trace("vllm", table["version"], deployment.dtype,
                 Method(requested=deployment.quantization), "error", error=error,
                 findings=_notes(checkpoint),
                 kv_cache={"requested": deployment.kv_cache_dtype,
                           "resolved": deployment.kv_cache_dtype, "method": None})


def _notes(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    return tuple(Finding("weight loading", note.severity, note.id, note.message, note.hint,
                         "checkpoint files") for note in checkpoint.notes)


def _left_out(structure: Structure) -> tuple[Finding, ...]:
    note = structure.left_out
    return () if note is None else (Finding("config fields", note.severity, note.id, note.message,
                                            note.hint, "transformers_utils/config.py:get_config"),)


def _trace(
    context: Context, method: Method, layers: tuple[Layer, ...], error: EngineError | None,
    serving: Serving | None,
) -> Trace:
    conditional = any(layer.selection and layer.selection.alternatives for layer in layers)
    outcome = "error" if error else "conditional" if conditional else "ok"
    requested = context.deployment.kv_cache_dtype
    kv_cache = {"requested": requested,
                "resolved": context.facts.get("kv.run_dtype", requested),
                "method": serving.kv_method if serving else None}
    found = _findings(context, layers, serving)
    return Trace("vllm", context.table["version"], context.dtype, method, outcome, layers, error,
                 found, kv_cache)


def _findings(
    context: Context, layers: tuple[Layer, ...], serving: Serving | None
) -> tuple[Finding, ...]:
    ignore, exact = serving.ignore if serving else ((), True)
    excluded = serving.excluded if serving else ()
    told = () if not layers else (*ignore_findings(context, layers, ignore, exact),
                                  *wildcard_findings(context, layers, excluded),
                                  *dynamic_findings(context), *target_findings(context),
                                  *listed_findings(context), *stored_findings(context, layers),
                                  *code_findings(context))
    found = (*coverage.covered(context.table, (*findings(context, layers), *told)),
             *_notes(context.checkpoint), *_left_out(context.structure))
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))


def _check_heads(structure: Structure, tp: int) -> None:
    heads = structure.sizes["num_attention_heads"]
    if heads % tp:
        raise refuse("shapes under TP", "ValidationError",
                     f"Total number of attention heads ({heads}) must be divisible by tensor "
                     f"parallel size ({tp}).", None,
                     "config/model.py:ModelConfig.verify_with_parallel_config",
                     hint="Choose a tensor parallel size that divides the heads.")


def _build(context: Context, serving: Serving) -> Iterator[Layer]:
    elsewhere = native(context)
    for module, index in context.structure.sites():
        if module.kind in BUILDERS and not (elsewhere and module.kind == "experts"):
            site = site_at(context, serving, module, index)
            check_rules(module.before, context, site)
            yield BUILDERS[module.kind](at_site(context, site), serving, site)
            check_rules(module.after, context, site)


def _linear_layer(context: Context, serving: Serving, site: Site) -> Layer:
    check_division(context, site)
    return replaced(context, site, _assigned(context, serving, site))


def _experts_layer(context: Context, serving: Serving, site: Site) -> Layer:
    from quantplan.dispatch.vllm.experts.layer import experts_layer  # dense models need none

    return experts_layer(context, serving, site)


def _assigned(context: Context, serving: Serving, site: Site) -> Layer:
    plain = None if site.module.kind == "embedding" else BUILT_PLAIN
    quantized = not serving.config_class or site.module.quantized_under(serving.config_class)
    assignment = serving.assign(site) if quantized else plain
    if assignment is None:
        return _layer(site, Assignment("UnquantizedEmbeddingMethod",
                                       why=serving.why_embedding(site, quantized)), None, None)
    if assignment.source is not None:
        _chosen(context, serving, site, assignment.source)
    return _chosen(context, serving, site, assignment)


def _chosen(context: Context, serving: Serving, site: Site, assignment: Assignment) -> Layer:
    """Return the layer with the kernel that takes it, or refuse."""
    asked = site
    if assignment.source is not None:
        from quantplan.dispatch.vllm.online import source_weight  # quantized again: few are

        asked = source_weight(context, site, assignment, assignment.source)
    assignment, selection = _select(context, asked, assignment)
    wanted = assignment.wanted or assignment.act
    if selection is None or assignment.family is None:
        return _layer(site, assignment, None, assignment.mode)
    if selection.kernel is None and selection.alternatives:
        return _layer(site, assignment, selection, None)
    if selection.kernel is None:
        raise refuse("kernel selection", "ValueError", str(selection.error), site.path,
                     context.table["families"][assignment.family]["source"],
                     hint="Drop --linear-backend and VLLM_DISABLED_KERNELS where they are set; -v "
                     "shows every kernel's checks.", selection=selection)
    coverage.check_kernel(context.table, selection.kernel)
    if serving.after:
        assignment = serving.after(context, site, assignment, selection)
    row = context.table["kernels"][selection.kernel]
    facts = {**context.facts, **_layer_facts(site), **assignment.quant}
    mode, act = mode_of(row, context.table, facts, assignment.act)
    return _layer(site, assignment._replace(act=act), selection, mode)._replace(
        asked=wanted,
        tuned=tuned_file(context, selection.kernel, facts))


def _select(
    context: Context, site: Site, assignment: Assignment
) -> tuple[Assignment, Selection | None]:
    """Return the assignment that is kept and the walk over its kernels, None where it has none."""
    if assignment.family is None:
        return assignment, None
    own = {**_layer_facts(site), **_backend(context, assignment.family), **assignment.quant}
    selection = _walk(context, site, assignment.family, own, {**context.facts, **own})
    if selection.kernel or selection.alternatives or assignment.otherwise is None:
        return assignment, selection
    return _select(context, site, assignment.otherwise())


def _walk(
    context: Context, site: Site, family: str, own: Mapping[str, Any], facts: Mapping[str, Any]
) -> Selection:
    read = _read(context, family)
    key = (family, *(value for fact, value in own.items() if fact in read))
    if key not in context.walks:
        try:
            context.walks[key] = pins.select(context.table, family, facts)
        except Refusal as refusal:
            raise Refusal(refusal.error._replace(layer=site.path)) from None
    found: Selection = context.walks[key]
    return found


def _read(context: Context, family: str) -> frozenset[str]:
    """Return the facts that decide a selection of `family`, worked out once."""
    key = ("facts read", family)
    if key not in context.walks:
        context.walks[key] = pins.facts_read(context.table, family) | BACKEND_FACTS
    found: frozenset[str] = context.walks[key]
    return found


def _backend(context: Context, family: str) -> dict[str, str]:
    deployment = context.deployment
    return {"flag.linear_backend": deployment.backend_of(family),
            "flag.linear_backend_words": deployment.backend_words(family)}


def _layer_facts(site: Site) -> dict[str, Any]:
    cut = site.shard
    return {"layer.n": cut.n, "layer.k": cut.k, "layer.n_full": cut.n_full,
            "layer.k_full": cut.k_full}


def _layer(
    site: Site, assignment: Assignment, selection: Selection | None, mode: str | None
) -> Layer:
    return Layer(site.module_path, site.module.module, site.shard.n, site.shard.k, site.layer_index,
                 assignment.method, assignment.scheme, mode, assignment.act, selection,
                 why=assignment.why, note=assignment.note)


BACKEND_FACTS = {"flag.linear_backend", "flag.linear_backend_words"}
BUILT_PLAIN = Assignment("UnquantizedLinearMethod", why=WITHOUT_CONFIG)
BUILDERS: Mapping[str, Callable[[Context, Serving, Site], Layer]] = {
    "linear": _linear_layer, "embedding": _linear_layer, "attention": attention_layer,
    "mla": attention_layer, "experts": _experts_layer, "part": attention_layer,
}
"""What builds the layer of each kind of module; norms have none."""
