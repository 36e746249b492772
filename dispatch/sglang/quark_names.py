"""Which of Quark's configs a layer has (layers/quantization/quark/quark.py:
QuarkConfig._find_matched_config) and which layers `exclude` leaves alone
(layers/quantization/quark/utils.py:should_ignore_layer)."""

from __future__ import annotations

from fnmatch import fnmatch

from quantplan.dispatch.expressions import search
from quantplan.dispatch.sglang.context import Context
from quantplan.dispatch.sglang.fields import Config, sub
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

CONFIG = "layers/quantization/quark/quark.py:QuarkConfig._find_matched_config"
IGNORE = "layers/quantization/quark/utils.py:should_ignore_layer"
LEAVES = {"gate_up_proj": ("gate_proj", "up_proj"),
          "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa")}
"""Fused layer -> leaves that the loader adds to every model class's own
(model_loader/loader.py:_get_quantization_config)."""


class Named(NamedTuple):
    """Configs by a pattern of the layer's path, by its class, and of all other layers."""

    patterns: Config
    classes: Config
    rest: Config | None


def with_quark_leaves(context: Context) -> Context:
    """Return the context whose fused layers are those that the class knows under Quark."""
    return context._replace(packed={**context.packed, **LEAVES})


def layer_config(
    context: Context, path: str, module: str, exclude: tuple[str, ...], named: Named
) -> Config | None:
    """Return the config of the layer at `path`, None where `exclude` leaves it alone."""
    if is_excluded(context, path, exclude):
        return None
    return _find(context, path, module, named)


def is_excluded(context: Context, path: str, exclude: tuple[str, ...]) -> bool:
    """Return whether `exclude` leaves the layer at `path` alone, for experts by any of them;
    refuses where it names some of a fused layer's leaves."""
    if _is_named(path, exclude) or (path.endswith(".experts") and any(
            name.startswith(f"{path}.") for name in exclude)):
        return True
    name = path.rsplit(".", maxsplit=1)[-1]
    leaves = context.packed.get(name, ())
    found = {_is_named(path.replace(name, leaf), exclude) for leaf in leaves}
    if len(found) > 1:
        raise _differ(f"Found different quantization schemes for {[*leaves]} in {path}.", path,
                      IGNORE)
    return found == {True}


def _is_named(path: str, names: tuple[str, ...]) -> bool:
    return any(search(name[3:], path) if name.startswith("re:") else name == path
               for name in names)


def _find(context: Context, path: str, module: str, named: Named) -> Config:
    name = path.rsplit(".", maxsplit=1)[-1]
    if name in context.packed:
        leaves = context.packed[name]
        found = [_find(context, path.replace(name, leaf), module, named) for leaf in leaves]
        if any(config != found[0] for config in found):
            raise _differ(f"Found a different quantization configuration for {[*leaves]} in "
                          f"{path}.", path, CONFIG)
        return found[0]
    fits = next((pattern for pattern in named.patterns if fnmatch(path, pattern)), None)
    if fits is not None:
        return sub(named.patterns, fits)
    if path.endswith(".experts") and any(key.startswith(f"{path}.") for key in named.patterns):
        raise NotKnownError("Quark configs of single experts",
                            hint="Name the experts by one pattern.")
    if module in named.classes:
        return sub(named.classes, module)
    if named.rest is None:
        raise refuse("layer assignment", "AttributeError", "'NoneType' object has no attribute "
                     "'get'", path, CONFIG, hint="quantization_config: add global_quant_config.")
    return named.rest


def _differ(said: str, path: str, source: str) -> Exception:
    return refuse("layer assignment", "ValueError", f"{said} SGLang requires all to use the same "
                  "scheme.", path, source, hint="Quantize the parts of a fused layer alike.")

