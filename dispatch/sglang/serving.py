"""The config class that serves a method: its fields and its gates
(model_loader/loader.py:_get_quantization_config)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from quantplan.dispatch.sglang.config_source import class_config
from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.names import NamedMethod
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]
GATES = "model_loader/loader.py:_get_quantization_config"


class Serving(NamedTuple):
    """The config class that serves the model: how it assigns layers and experts, the method of
    attention layers, what the checkpoint says of the KV cache, whether shared experts may be among
    the routed ones, and the block of scales (128/128, or none)."""

    config_class: str | None
    min_capability: int | None
    assign: Callable[[Site], Assignment | None]
    experts: Callable[[Site, Any], Assignment | None]
    kv_method: str | None = None
    kv_algo: str | None = None
    check_attention: Callable[[Site], None] = lambda site: None
    fuses_shared: bool = True
    block: str = "none"


def serve(named: NamedMethod, context: Context) -> Serving:
    """Return what serves the named method; refuses at the config's fields, the capability gate and
    the activation dtype, in that order. Raises NotKnownError for methods without a module."""
    if named.resolved is None:
        return Serving(None, None, lambda site: None, lambda site, held: None)
    row = context.table["methods"][named.resolved]
    config = class_config(row, named, context.checkpoint)
    module = import_module(f"quantplan.dispatch.sglang.{row['resolves']}") if (
        "resolves" in row) else None
    context = context._replace(facts={**context.facts, "quant.method": named.resolved})
    fields = module.read(config, context) if module else None
    check_gates(row, context.gpu.capability, context.dtype)
    if module is None:
        raise NotKnownError(f"the layers of SGLang's {named.resolved}",
                            hint="Its name, fields that no rule reads, and gates are in the table; "
                            "its operators are not yet.")
    kv_method = module.kv_method(fields) if hasattr(module, "kv_method") else row.get("kv_method")
    kv_algo = module.kv_algo(fields) if hasattr(module, "kv_algo") else None
    own_class = module.config_class(fields) if hasattr(module, "config_class") else None
    fuses = module.fuses_shared(fields) if hasattr(module, "fuses_shared") else True
    return Serving(own_class or row["config_class"], row["min_capability"],
                   lambda site: module.assign(fields, context, site.named),
                   lambda site, held: _experts_of(module, row)(
                       fields, context, site.named, held),
                   kv_method, kv_algo,
                   lambda site: _check_attention(module, fields, context, site.named), fuses,
                   _block(fields))


def _check_attention(module: ModuleType, fields: Any, context: Context, site: Site) -> None:
    """Refuse what the method of attention layers refuses, where its module has a rule."""
    if hasattr(module, "check_attention"):
        module.check_attention(fields, context, site)


def _block(fields: Any) -> str:
    block = getattr(fields, "block", None)
    return "/".join(map(str, block)) if isinstance(block, tuple) else "none"


def _experts_of(module: ModuleType, row: Row) -> Callable[..., Assignment | None]:
    """Return what assigns routed experts. Raises NotKnownError for methods that have none yet."""
    if not hasattr(module, "experts"):
        raise NotKnownError(f"the routed experts of SGLang's {row['id']}",
                            hint="Their methods are not in the table yet.")
    assign: Callable[..., Assignment | None] = module.experts
    return assign


def check_gates(row: Row, capability: int | None, dtype: str) -> None:
    """Refuse a GPU below the method's least capability (None: it is not asked for), then a dtype
    that the method does not serve."""
    if capability is not None and capability < (least := row["min_capability"]):
        raise refuse("capability gate", "ValueError", f"The quantization method {row['id']} is not "
                     f"supported for the current GPU. Minimum capability: {least}. Current "
                     f"capability: {capability}.", None, GATES,
                     hint=f"It needs a GPU of capability {least // 10}.{least % 10} or above.")
    if dtype not in row["act_dtypes"]:
        known = ", ".join(f"torch.{name}" for name in row["act_dtypes"])
        raise refuse("activation dtype", "ValueError", f"torch.{dtype} is not supported "
                     f"for quantization method {row['id']}. Supported dtypes: [{known}]", None,
                     GATES, hint=f"Pass --dtype {row['act_dtypes'][0]}.")
