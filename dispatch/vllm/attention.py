"""The layer of one module that attends, or that holds a cache or a state with a backend of its own
(model_executor/layers/attention/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import applies
from quantplan.dispatch.trace import Layer, Refusal, Selection, Step, refuse
from quantplan.dispatch.vllm import kv_cache
from quantplan.dispatch.vllm.attention_args import argument_facts
from quantplan.dispatch.vllm.attention_backends import refusal, select, without_code
from quantplan.dispatch.vllm.attention_facts import attention_facts
from quantplan.dispatch.vllm.attention_remedy import remedy
from quantplan.dispatch.vllm.context import Context, Site
from quantplan.dispatch.vllm.mla import prefill_backend
from quantplan.dispatch.vllm.serving import Serving
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]
HEADS_SOURCE = "model_executor/layers/attention/attention.py:Attention"


class Choice(NamedTuple):
    """What a module gets: layers of the same module and cache dtype share one."""

    selection: Selection
    module: str
    dtype: str | None
    prefill: str | None = None


def with_attention(context: Context, serving: Serving) -> Context:
    """Return the context with the facts of attention that hold for the whole run."""
    cache = kv_cache.run_facts(context, serving.kv_dtype, serving.kv_scheme)
    known = context._replace(facts={**context.facts, **cache})
    kv_cache.check_model(known, cache["kv.configured"])
    return known._replace(facts={**known.facts, **argument_facts(known, cache["kv.configured"])})


def attention_layer(context: Context, serving: Serving, site: Site) -> Layer:
    """Return the layer with its backend, KV dtype and KV method, or refuse."""
    module = context.table["attention"]["modules"].get(site.module.module)
    if module is None:
        return _without_backend(site)
    if "backend" in module:
        return _one_backend(context, site, module)
    _check_heads(context, site)
    choice = _choice(context, site, module, serving.kv_scheme)
    quantized = module.get("loads_scales_as") if site.module.quantized else None
    method = serving.kv_method_of(site, quantized)
    if method is not None and choice.dtype is not None:
        kv_cache.check_method(context, site, method, serving.kv_scheme, choice.dtype)
    return Layer(site.module_path, choice.module, layer_index=site.layer_index, method=method,
                 attn_backend=choice.selection.kernel, kv_cache_dtype=choice.dtype,
                 selection=choice.selection, prefill_backend=choice.prefill)


def _without_backend(site: Site) -> Layer:
    if site.module.kind != "part":
        raise NotKnownError(f"the attention of {site.module.module}",
                            hint="A row in the engine table's attention.modules teaches it.")
    return Layer(site.module_path, site.module.module, layer_index=site.layer_index)


def _one_backend(context: Context, site: Site, module: Row) -> Layer:
    """Return the layer of a cache or a state whose class has one backend; a state has none under
    batch invariance (v1/attention/selector.py:_cached_get_mamba_attn_backend raises)."""
    _check_refusal(site, module, context.facts)
    lost = module.get("state") and context.facts["env.VLLM_BATCH_INVARIANT"]
    return Layer(site.module_path, site.module.module, layer_index=site.layer_index,
                 attn_backend=None if lost else module["backend"])


def _choice(context: Context, site: Site, module: Row, scheme: Row | None) -> Choice:
    dtype = kv_cache.layer_dtype(context, site)
    asked = _asked_with(context, site, module, dtype)
    key = ("attention", id(site.module), dtype, asked)
    if key not in context.walks:
        context.walks[key] = _choose(context, site, module, scheme, (asked, dtype))
    found: Choice = context.walks[key]
    return found


def _asked_with(context: Context, site: Site, module: Row, dtype: str) -> str:
    """Return the cache dtype with which the backend is looked for. Modules that look for it before
    they are attention layers do not see what the first of these makes of the checkpoint's scheme,
    nor which layers are skipped."""
    if not module.get("early"):
        return dtype
    modules, table = context.structure.modules, context.table
    first = min(index for m in modules if kv_cache.scales_kind(table, m.module) == "attention"
                for index in m.layers)
    return str(context.facts["kv.configured" if site.layer_index == first else "kv.run_dtype"])


def _choose(
    context: Context, site: Site, module: Row, scheme: Row | None, dtypes: tuple[str, str]
) -> Choice:
    asked, dtype = dtypes
    attention = context.table["attention"]
    heads = kv_cache.per_head(scheme) and not (module.get("early") or module.get("mla"))
    facts = attention_facts(context, site, module, asked, heads)
    name = _list(module, site.module.facts)
    selection = select(attention, name, facts)
    if selection.kernel is None and not selection.alternatives:
        kind = "AssertionError" if name == "vision" else "ValueError"
        raise refuse("kernel selection", kind, str(selection.error), site.path,
                     attention["source"], remedy(context, name, facts, selection), selection)
    _check_refusal(site, module, {**facts, "attn.backend": selection.kernel})
    if selection.kernel is None:
        return Choice(selection, site.module.module, dtype)
    if module.get("cache") is False:
        return Choice(selection, site.module.module, None)
    built = facts if asked == dtype else attention_facts(context, site, module, dtype, heads)
    return _built(context, site, module, selection, built)


def _list(module: Row, own: Row) -> str:
    """Return the list of backends that a module walks."""
    unequal = own.get("v_head_dim", own.get("head_dim")) != own.get("head_dim")
    return str(module["unequal"] if unequal and "unequal" in module else module["list"])


def _built(
    context: Context, site: Site, module: Row, selection: Selection, facts: Row
) -> Choice:
    """Return the choice after its constructor; without its backend where that refuses and unknown
    facts may choose another one before it."""
    attention = context.table["attention"]
    backend = attention["backends"][selection.kernel]
    dtype = kv_cache.rewritten(backend, facts["kv.dtype"], facts)
    try:
        _check_refusal(site, backend, facts)
        prefill = _prefill(context, site, module, backend, {**facts, "kv.dtype": dtype})
    except Refusal as error:
        if not selection.alternatives:
            raise
        return Choice(selection._replace(kernel=None, error=error.error.message),
                      site.module.module, dtype)
    special = (row["module"] for row in backend.get("module_when", ())
               if applies(row["when"], facts))
    name = next(special, backend.get("module", site.module.module))
    return Choice(_with_code(attention, selection, prefill, facts), name, dtype, prefill)


def _with_code(
    attention: Row, selection: Selection, prefill: str | None, facts: Row
) -> Selection:
    """Return the selection with a step for each chosen backend that is not compiled for here."""
    rows = [attention["backends"][selection.kernel]]
    rows += [row for row in attention["prefill"]["backends"] if row["id"] == prefill]
    found = [(row["id"], check) for row in rows for check in (without_code(row, facts),) if check]
    steps = (Step("NoCode", name, str(check.says), check.source) for name, check in found)
    return selection._replace(steps=(*selection.steps, *steps))


def _check_refusal(site: Site, constructed: Row, facts: Row) -> None:
    found = refusal(constructed, facts)
    if found is not None:
        row, check = found
        hint = (f"Drop the FP8 KV cache here: --kv-cache-dtype {facts['dtype.model']}."
                if facts.get("kv.is_fp8") else None)
        raise refuse("kernel selection", row.get("type", "ValueError"), check.says or check.text,
                     site.path, check.source, hint=hint)


def _prefill(
    context: Context, site: Site, module: Row, backend: Row, facts: Row
) -> str | None:
    if not module.get("prefill"):
        return None
    table = context.table["attention"]["prefill"]
    chosen, error = prefill_backend(table, backend, facts)
    if error is not None:
        raise refuse("kernel selection", "ValueError", error, site.path, table["source"])
    return chosen


def _check_heads(context: Context, site: Site) -> None:
    own, tp = site.module.facts, context.deployment.tp
    if site.module.kind != "attention" or "kv_heads" not in own:
        return
    heads, kv_heads = own["heads"] // tp, own["kv_heads"] // tp
    if not kv_heads and own.get("kv_unshared"):
        raise refuse("shapes under TP", "ZeroDivisionError", "integer modulo by zero", site.path,
                     HEADS_SOURCE, hint=f"Use at most {own['kv_heads']} ranks: the class has no "
                     "key-value head for more.")
    kv_heads = max(1, kv_heads)
    if heads % kv_heads:
        raise refuse("shapes under TP", "AssertionError",
                     f"num_heads ({heads}) is not divisible by num_kv_heads ({kv_heads})",
                     site.path, HEADS_SOURCE,
                     hint="config.json: num_attention_heads is a multiple of num_key_value_heads.")
