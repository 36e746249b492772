"""vLLM's start-up in its own order: flags, dtype, method name, heads, config class, then every
layer. Each step either answers or refuses with the engine's own error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from quantplan.dispatch import candidates
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.families import Module, Structure, model_structure
from quantplan.dispatch.predicates import fill
from quantplan.dispatch.shard import NO_SHARD, shard
from quantplan.dispatch.trace import EngineError, Layer, Method, Refusal, Selection, Trace
from quantplan.dispatch.vllm import awq, compressed_tensors, fp8, gptq, online
from quantplan.dispatch.vllm.attention import attention_layer, check_kv_flag, kv_dtype
from quantplan.dispatch.vllm.context import (
    Assignment,
    Context,
    Site,
    Table,
    base_facts,
    refuse,
)
from quantplan.dispatch.vllm.dtype import resolve_dtype
from quantplan.dispatch.vllm.names import NamedMethod, name_method
from quantplan.tables.errors import NotKnownError, UsageError

After = Callable[[Context, Site, Assignment, Selection], Assignment]
Assign = Callable[[Site], "Assignment | None"]


class Serving(NamedTuple):
    """The config class that serves the model: how it assigns layers, and its KV-cache method."""

    config_class: str | None
    min_capability: int | None
    assign: Assign
    after: After | None = None
    kv_method: str | None = None
    kv_scheme: Mapping[str, Any] | None = None


def resolve(checkpoint: Checkpoint, table: Table, gpu: Gpu, deployment: Deployment) -> Trace:
    """Return what this vLLM version would do. The outcome covers everything up to and including
    model construction; what fails later is a finding."""
    _check_flags(table, deployment)
    dtype = resolve_dtype(checkpoint.text_config, gpu, deployment.dtype)
    structure = model_structure(checkpoint)
    facts = base_facts(table, checkpoint, gpu, deployment, dtype)
    context = Context(table, checkpoint, structure, gpu, deployment, dtype, facts)
    method = Method(requested=deployment.quantization)
    try:
        named = name_method(table, checkpoint, deployment)
        method = Method(named.checkpoint, deployment.quantization, steps=named.steps)
        _check_heads(structure, deployment.tp)
        serving = _serve(named, context)
    except Refusal as refusal:
        return _trace(context, method, (), refusal.error, None)
    method = Method(named.checkpoint, deployment.quantization, named.resolved,
                    serving.config_class, serving.min_capability, named.steps)
    layers: list[Layer] = []
    try:
        layers.extend(_build(context, serving))
    except Refusal as refusal:
        return _trace(context, method, (), refusal.error, serving)
    return _trace(context, method, tuple(layers), None, serving)


def _trace(
    context: Context, method: Method, layers: tuple[Layer, ...], error: EngineError | None,
    serving: Serving | None,
) -> Trace:
    conditional = any(layer.selection and layer.selection.alternatives for layer in layers)
    outcome = "error" if error else "conditional" if conditional else "ok"
    requested = context.deployment.kv_cache_dtype
    scheme = serving.kv_scheme if serving else None
    kv_cache = {"requested": requested, "resolved": kv_dtype(requested, scheme),
                "method": serving.kv_method if serving else None}
    return Trace("vllm", context.table["version"], context.dtype, method, outcome, layers, error,
                 kv_cache=kv_cache)


def _check_flags(table: Table, deployment: Deployment) -> None:
    backend = deployment.linear_backend
    if backend != "auto" and backend not in table["linear_backends"]:
        raise UsageError(f"--linear-backend {backend}",
                         wanted="auto, " + ", ".join(table["linear_backends"]))
    check_kv_flag(table, deployment.kv_cache_dtype)


def _check_heads(structure: Structure, tp: int) -> None:
    heads = structure.sizes["num_attention_heads"]
    if heads % tp:
        raise refuse("shapes under TP", "ValidationError",
                     f"Total number of attention heads ({heads}) must be divisible by tensor "
                     f"parallel size ({tp}).", None,
                     "config/model.py:ModelConfig.verify_with_parallel_config",
                     hint="Choose a tensor parallel size that divides the heads.")


def _serve(named: NamedMethod, context: Context) -> Serving:
    if named.resolved is None:
        return Serving(None, None, lambda site: _unquantized(site))
    row, fields = _config_class(named, context)
    _check_capability(named.resolved, row, context)
    _check_dtype(named.resolved, row, context)
    module = MODULES.get(row["resolves"])
    if module is None:
        method = named.resolved
        return Serving(row["id"], row["min_capability"],
                       lambda site: online.assign(method, context, site), online.after_selection)
    after = getattr(module, "after_selection", None)
    return Serving(row["id"], row["min_capability"],
                   lambda site: module.assign(fields, context, site), after,
                   row.get("kv_method"), getattr(fields, "kv_scheme", None))


MODULES: Mapping[str, Any] = {"fp8": fp8, "awq": awq, "gptq": gptq,
                              "compressed_tensors": compressed_tensors}
"""Config class row `resolves` -> the module that reads its fields and assigns its layers."""


def _config_class(named: NamedMethod, context: Context) -> tuple[Mapping[str, Any], Any]:
    table, name = context.table, str(named.resolved)
    config = named.config or _side_file(name, context)
    if config is None and name in table["online_methods"]:
        return table["config_classes"]["OnlineQuantizationConfig"], None
    row = table["config_classes"][table["methods"][name]["config_class"]]
    if row["resolves"] == "none" and (config is not None or name not in CONFIG_FILE_METHODS):
        raise NotKnownError(f"quantization method {name} ({row['id']})",
                            wanted="a method whose layers are in the table",
                            hint="It is registered in this engine version; its rules are not "
                            "tabulated yet.")
    if config is None:
        _refuse_no_config(name, row)
    module = MODULES.get(row["resolves"])
    return row, module.read(config, context) if module else None


CONFIG_FILES = {
    "awq": ("quantize_config.json", "quant_config.json"), "gptq": ("quantize_config.json",),
}
"""get_config_filenames() of the config classes that read a file of their own."""


CONFIG_FILE_METHODS = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "moe_wna16")
"""Methods without rules here that are refused for want of a config file, whatever their rules."""


def _side_file(name: str, context: Context) -> Mapping[str, Any] | None:
    row = context.table["methods"].get(name)
    classes = context.table["config_classes"]
    kind = classes[row["config_class"]]["resolves"] if row else None
    found = [f for f in CONFIG_FILES.get(str(kind), ()) if f in context.checkpoint.side_files]
    return context.checkpoint.side_files[found[0]] if found else None


def _refuse_no_config(name: str, row: Mapping[str, Any]) -> None:
    told = row.get("no_checkpoint")
    source = "model_executor/model_loader/weight_utils.py:get_quant_config"
    hint = "The checkpoint is not quantized; --quantization fp8_per_tensor quantizes it online."
    if told:
        raise refuse("config fields", told["type"], told["message"], None, source, hint)
    raise refuse("config fields", "ValidationError", f"Cannot find the config file for {name}",
                 None, source, hint)


def _check_capability(name: str, row: Mapping[str, Any], context: Context) -> None:
    if context.gpu.capability < row["min_capability"]:
        raise refuse("capability gate", "ValidationError",
                     f"The quantization method {name} is not supported for the current GPU. "
                     f"Minimum capability: {row['min_capability']}. Current capability: "
                     f"{context.gpu.capability}.", None,
                     "config/vllm.py:VllmConfig._get_quantization_config",
                     hint="No flag changes this; use another format or a newer GPU.")


def _check_dtype(name: str, row: Mapping[str, Any], context: Context) -> None:
    if context.dtype not in row["dtypes"]:
        listed = "[" + ", ".join(f"torch.{dtype}" for dtype in row["dtypes"]) + "]"
        raise refuse("activation dtype", "ValidationError",
                     f"torch.{context.dtype} is not supported for quantization method {name}. "
                     f"Supported dtypes: {listed}", None,
                     "config/vllm.py:VllmConfig._get_quantization_config",
                     hint=f"Pass --dtype {row['dtypes'][0]}.")


def _unquantized(site: Site) -> Assignment | None:
    return None if site.module.split == "vocab" else Assignment("UnquantizedLinearMethod")


def _build(context: Context, serving: Serving) -> Iterator[Layer]:
    for module, index in _sites(context.structure):
        if module.module == "Attention":
            site = Site(_path(module, index), index, module, NO_SHARD)
            yield attention_layer(context, site, serving.kv_method, serving.kv_scheme)
            continue
        cut = shard(module, context.structure, context.deployment.tp)
        site = Site(_path(module, index), index, module, cut)
        _check_division(context, site)
        yield _linear_layer(context, serving, site)


def _sites(structure: Structure) -> Iterator[tuple[Module, int | None]]:
    built = [m for m in structure.modules if m.module != "RMSNorm"]
    yield from ((m, None) for m in built if not m.per_layer and m.split == "vocab"
                and m.path != "lm_head")
    for index in range(structure.num_layers):
        yield from ((m, index) for m in built if m.per_layer)
    yield from ((m, None) for m in built if m.path == "lm_head")


def _path(module: Module, index: int | None) -> str:
    return module.path if index is None else module.path.replace("*", str(index))


def _check_division(context: Context, site: Site) -> None:
    if not site.shard.divides:
        text = ""
        if site.module.split in ("row", "vocab"):
            whole = site.shard.k_full if site.module.split == "row" else site.shard.n_full
            text = f"{whole} is not divisible by {context.deployment.tp}"
        raise refuse("shapes under TP", "AssertionError", text, site.path,
                     "model_executor/layers/linear.py",
                     hint="Choose a tensor parallel size that divides this layer.")
    structure = context.structure
    if site.name == "down_proj" and structure.hidden_act not in structure.accepted_acts:
        raise refuse("layer assignment", "ValueError",
                     f"Unsupported activation: {structure.hidden_act}. Only silu is supported for "
                     "now.", site.path, structure.source)


def _linear_layer(context: Context, serving: Serving, site: Site) -> Layer:
    assignment = serving.assign(site)
    if assignment is None:
        return _layer(site, Assignment("UnquantizedEmbeddingMethod"), None, None)
    if assignment.family is None:
        return _layer(site, assignment, None, assignment.mode)
    facts = {**context.facts, **_layer_facts(site), **assignment.quant}
    selection = candidates.walk(context.table, assignment.family, facts)
    if selection.kernel is None:
        raise refuse("kernel selection", "ValueError", str(selection.error), site.path,
                     context.table["families"][assignment.family]["source"], selection=selection)
    if serving.after:
        assignment = serving.after(context, site, assignment, selection)
    row = context.table["kernels"][selection.kernel]
    mode = fill(row["mode"], {**facts, **assignment.quant})
    return _layer(site, assignment._replace(act=row.get("act", assignment.act)), selection, mode)


def _layer_facts(site: Site) -> dict[str, Any]:
    cut = site.shard
    return {"layer.n": cut.n, "layer.k": cut.k, "layer.n_full": cut.n_full,
            "layer.k_full": cut.k_full}


def _layer(
    site: Site, assignment: Assignment, selection: Selection | None, mode: str | None
) -> Layer:
    return Layer(site.path, site.module.module, site.shard.n, site.shard.k, site.index,
                 assignment.method, assignment.scheme, mode, assignment.act, selection,
                 why=assignment.why)
