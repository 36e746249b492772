"""The config class that serves a method: its fields, its gates, and how it assigns layers
(model_executor/model_loader/weight_utils.py:get_quant_config, config/vllm.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantplan.dispatch.renames import renamed
from quantplan.dispatch.trace import Selection, refuse
from quantplan.dispatch.vllm import modelopt_config
from quantplan.dispatch.vllm.context import Assignment, Context, Site, at_site
from quantplan.dispatch.vllm.fields import check_kinds, names
from quantplan.dispatch.vllm.names import NamedMethod, class_of
from quantplan.dispatch.vllm.online_args import OnlineArgs, check_some, given_args, served_args
from quantplan.tables.record import NamedTuple

if TYPE_CHECKING:
    from quantplan.dispatch.vllm.experts.plan import Experts, Plan

After = Callable[[Context, Site, Assignment, Selection], Assignment]
Assign = Callable[[Site], "Assignment | None"]
AssignExperts = Callable[["Experts"], "Plan"]
KvMethod = Callable[[Site], "str | None"]
WITHOUT_CONFIG = "built without the quantization config"


class Serving(NamedTuple):
    """The config class that serves the model: how it assigns layers, and its KV-cache method.

    `kv_scheme` is a compressed-tensors scheme, `kv_dtype` the --kv-cache-dtype that the checkpoint
    turns auto into (None: it says nothing), `kv_kinds` the kinds of attention that have the
    method; `kv_refined` says which layers of these do where not all. `block` is the class's
    weight_block_size.
    """

    config_class: str | None
    min_capability: int | None
    assign: Assign
    assign_experts: AssignExperts
    after: After | None = None
    kv_method: str | None = None
    kv_scheme: Mapping[str, Any] | None = None
    kv_dtype: str | None = None
    kv_kinds: tuple[str, ...] = ()
    kv_refined: KvMethod | None = None
    ignore: tuple[tuple[str, ...], bool] = ((), True)
    excluded: tuple[str, ...] = ()
    block: tuple[int, int] | None = None

    def kv_method_of(self, site: Site, kind: str | None) -> str | None:
        """Return the KV-cache method class of an attention layer that config classes take for
        `kind` (attention, mla), or None."""
        if kind not in self.kv_kinds:
            return None
        return self.kv_refined(site) if self.kv_refined else self.kv_method

    def why_embedding(self, site: Site, asked: bool) -> str | None:
        """Return why an embedding or lm_head stays in 16 bits, None in a model without a method;
        `asked` is whether it is built with the quantization config."""
        if not self.config_class:
            return None
        if not site.is_head:
            return "rows are looked up, not multiplied"
        return f"{self.config_class} leaves lm_head alone" if asked else WITHOUT_CONFIG


def serve(named: NamedMethod, context: Context) -> Serving:
    """Return what serves the named method; refuses at the config's fields, the capability gate and
    the activation dtype, in that order."""
    if named.resolved is None:
        return Serving(None, None, _unquantized, _unquantized_experts)
    row, fields = _config_class(named, context)
    args = _online_args(named.resolved, row, context)
    fields = renamed(fields, row.get("renamed", {}), context.structure.renames)
    check_capability(named.resolved, row, context.gpu.capability)
    check_dtype(named.resolved, row, context.dtype)
    module = _module(row)
    if module is None:
        from quantplan.dispatch.vllm.online_serving import online_serving

        return online_serving(row, args or OnlineArgs(), context)
    after = getattr(module, "after_selection", None)
    kv_method = getattr(fields, "kv_method", row.get("kv_method"))
    own = Serving(row["id"], row["min_capability"],
                  lambda site: module.assign(fields, at_site(context, site), site),
                  lambda experts: _experts_plan(row, fields, experts), after,
                  kv_method, getattr(fields, "kv_scheme", None), _kv_dtype(named, context),
                  tuple(row.get("kv_kinds", ())), _kv_refined(module, fields, context),
                  _ignore(fields, named.config or {}), getattr(fields, "excluded", ()),
                  getattr(fields, "block", None))
    if args is None:
        return own
    from quantplan.dispatch.vllm.online_serving import requantized

    return requantized(own, args, context)


def _experts_plan(row: Mapping[str, Any], fields: Any, experts: Experts) -> Plan:
    from quantplan.dispatch.vllm.experts.methods import experts_plan  # dense models need none

    return experts_plan(row["resolves"], row["id"], fields, experts)


def _online_args(name: str, row: Mapping[str, Any], context: Context) -> OnlineArgs | None:
    """Return what is quantized while loading: all of it, or on top of the checkpoint."""
    args = given_args(context.table, context.deployment)
    if row["resolves"] == "online":
        args = served_args(context.table, name, args)
        if args is None:
            _refuse(row["no_checkpoint"], row["source"], ONLINE_HINT)
    if args is not None:
        check_some(args)
    return args


ONLINE_HINT = "The checkpoint is not quantized; --quantization fp8_per_tensor quantizes it online."


def _kv_refined(module: Any, fields: Any, context: Context) -> KvMethod | None:
    refined = getattr(module, "kv_method_at", None)
    return None if refined is None else lambda site: refined(fields, context, site)


def _kv_dtype(named: NamedMethod, context: Context) -> str | None:
    if named.config is None or named.checkpoint is None:
        return None
    return modelopt_config.kv_cache_dtype(context.table, named.config, named.checkpoint)


def _ignore(fields: Any, config: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Return the ignore entries that the config itself lists, and whether they are whole names."""
    if getattr(fields, "skips_substrings", False):
        return names(config, "modules_to_not_convert"), False
    return tuple(getattr(fields, "ignored", getattr(fields, "ignore", ())) or ()), True


MODULES = frozenset((
    "fp8", "awq", "gptq", "moe_wna16", "compressed_tensors", "inc", "humming", "torchao", "fbgemm",
    "fp_quant", "deepseek_v4", "experts_only", "quark"))
"""Config class row `resolves` that names the module of this package that reads its fields and
assigns its layers; an answer imports the one that it needs."""


def _config_class(named: NamedMethod, context: Context) -> tuple[Mapping[str, Any], Any]:
    table, name = context.table, str(named.resolved)
    config = _own_config(named, context)
    row = table["config_classes"][class_of(table, name, config is None)]
    if config is not None and row.get("from_checkpoint"):
        _refuse(row["from_checkpoint"], row["source"], "Drop quantization_config from config.json "
                "and pass the method with --quantization.")
    module = _module(row)
    if module is None:
        return row, None
    if config is None:
        check_default(name, row)
        return row, module.default(context)
    return row, module.read(getattr(module, "check", check_kinds)(config), context)


def _module(row: Mapping[str, Any]) -> Any:
    """Return what reads the fields of a config class and assigns its layers, None for online."""
    name = row["resolves"]
    if name == "modelopt":
        return import_module(f"{__package__}.modelopt").Reader(row["id"])
    return import_module(f"{__package__}.{name}") if name in MODULES else None


def _own_config(named: NamedMethod, context: Context) -> Mapping[str, Any] | None:
    """Return the config that the class reads; modelopt_mixed goes on to hf_quant_config.json when
    that of config.json has no layers."""
    name, config = str(named.resolved), named.config
    if config is not None and (name != MIXED or "quantized_layers" in config):
        return config
    found = _side_file(name, context)
    if name == MIXED and found is not None:
        modelopt_config.check_producer(found, name, context.checkpoint.folder)
    return found


MIXED = "modelopt_mixed"

def _side_file(name: str, context: Context) -> Mapping[str, Any] | None:
    row = context.table["methods"].get(name)
    served = context.table["config_classes"][row["config_class"]] if row else {}
    found = [f for f in context.checkpoint.side_files if f.endswith(tuple(served.get("files", ())))]
    if len(found) > 1:
        files = [f"{context.checkpoint.name}/{file}" for file in found]
        raise refuse("config fields", "ValidationError",
                     f"Found multiple config files for {name}: {files}", None,
                     "model_executor/model_loader/weight_utils.py:get_quant_config",
                     hint="Keep one of them.")
    return context.checkpoint.side_files[found[0]] if found else None


def check_default(name: str, row: Mapping[str, Any]) -> None:
    """Refuse a checkpoint without a config, unless the class can be made from nothing."""
    told = row.get("no_checkpoint")
    source = "model_executor/model_loader/weight_utils.py:get_quant_config"
    if told:
        _refuse(told, source, ONLINE_HINT)
    if row.get("files"):
        raise refuse("config fields", "ValidationError", f"Cannot find the config file for {name}",
                     None, source, ONLINE_HINT)


def _refuse(told: Mapping[str, str], source: str, hint: str) -> None:
    raise refuse("config fields", told["type"], told["message"], None, source, hint)


def check_capability(name: str, row: Mapping[str, Any], capability: int) -> None:
    """Refuse a GPU below the least capability of the config class."""
    if capability < row["min_capability"]:
        raise refuse("capability gate", "ValidationError",
                     f"The quantization method {name} is not supported for the current GPU. "
                     f"Minimum capability: {row['min_capability']}. Current capability: "
                     f"{capability}.", None,
                     "config/vllm.py:VllmConfig._get_quantization_config",
                     hint="No flag changes this; use another format or a newer GPU.")


def check_dtype(name: str, row: Mapping[str, Any], dtype: str) -> None:
    """Refuse a dtype that the config class does not serve."""
    if dtype not in row["dtypes"]:
        listed = "[" + ", ".join(f"torch.{known}" for known in row["dtypes"]) + "]"
        raise refuse("activation dtype", "ValidationError",
                     f"torch.{dtype} is not supported for quantization method {name}. "
                     f"Supported dtypes: {listed}", None,
                     "config/vllm.py:VllmConfig._get_quantization_config",
                     hint=f"Pass --dtype {row['dtypes'][0]}.")


def _unquantized(site: Site) -> Assignment | None:
    return None if site.module.split == "vocab" else Assignment("UnquantizedLinearMethod")


def _unquantized_experts(experts: Experts) -> Plan:
    from quantplan.dispatch.vllm.experts.plan import unquantized

    return unquantized()
