"""Method humming: HummingConfig, on a 16-bit checkpoint or on top of another method's
(model_executor/layers/quantization/humming.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.environment import readable
from quantplan.dispatch.expressions import search
from quantplan.dispatch.humming_config import group_part, is_skipped
from quantplan.dispatch.predicates import Unreadable
from quantplan.dispatch.renames import rename
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.humming_layer import SOURCE, Schemas, build, linear_of
from quantplan.tables.errors import CheckpointError, UsageError

Config = Mapping[str, Any]
ONLINE, INPUT = "VLLM_HUMMING_ONLINE_QUANT_CONFIG", "VLLM_HUMMING_INPUT_QUANT_CONFIG"
GROUPED = ("compressed-tensors", "modelopt")
"""Methods whose layers are described by config groups."""


def check(config: Config) -> Config:
    """Return the config: its fields are read as the package humming reads them."""
    return config


def read(config: Config, context: Context) -> Config:
    """Return the checkpoint's config; nothing of it is looked at before the layers are built."""
    return config


def default(context: Context) -> Config:
    """Return the config of a checkpoint that has none."""
    return {}


def assign(fields: Config, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; None for embeddings and lm_head, whose configs the
    engine builds all the same."""
    vocab = site.module.split == "vocab"
    schemas = schemas_of(fields, context, site)
    made = build(context, site, schemas) if schemas is not None else None
    if vocab:
        return None
    if made is None:
        return Assignment("UnquantizedLinearMethod", why="skipped, or in no group for Linear")
    if not fields and (site.shard.k % 32 or site.shard.k_full % 32):
        return Assignment("UnquantizedLinearMethod", why="its inputs are no multiple of 32")
    return linear_of(context, site, made)


def schemas_of(fields: Config, context: Context, site: Site) -> Schemas | None:
    """Return what the layer is asked to be, or None for one that stays in 16 bits
    (HummingConfig.get_quant_config_for_layer)."""
    online = _variable(ONLINE, context, site)
    own = {**online, "quant_method": "humming"}
    if not fields:
        stored, forced = _layer(own, "weights", context, site), None
    else:
        stored = _layer(fields, "weights", context, site)
        asked = online.get("force_requant", False)
        forced = _layer(own, "weights", context, site) if asked else None
    return None if stored is None else _with_inputs(Schemas(stored, forced=forced), fields,
                                                    context, site)


def _with_inputs(schemas: Schemas, fields: Config, context: Context, site: Site) -> Schemas:
    """Return the schemas with the checkpoint's activations and those of the variable, which allow
    no others unless they say so."""
    given = _layer(fields, "input_activations", context, site) if fields else None
    if isinstance(context.facts[f"env.{INPUT}"], Unreadable):
        build(context, site, schemas._replace(given=given))  # what comes first refuses first
    variable = _variable(INPUT, context, site)
    forced = _layer({**variable, "quant_method": "humming"}, "input", context, site
                    ) if variable else None
    allowed = given.get("allow_fallback", True) if given is not None else True
    if forced is not None:
        allowed = forced.get("allow_fallback", False)
    elif schemas.forced is not None:
        forced = {"quant_method": "humming"}
    return schemas._replace(given=given, forced_given=forced, fallback=bool(allowed))


def _variable(name: str, context: Context, site: Site) -> Config:
    value = readable(name, context.facts, site.blamed)
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"environment variable {name}", wanted="a JSON object",
                         found=repr(value)[:60])
    return value or {}


def _layer(config: Config, part: str, context: Context, site: Site) -> Config | None:
    """Return the config of one layer: of its group for Linear, with the `dynamic` rule that fits;
    None for a layer that is skipped or has no such part."""
    if _skipped(config, context, site):
        return None
    if config["quant_method"] in GROUPED:
        group = group_part(config, part, lambda held, name: _need(held, name, site))
        if group is None:
            return None
        config = group
    rules = config.get("dynamic", {})
    for pattern, rule in rules.items() if isinstance(rules, Mapping) else ():
        if pattern.startswith("+") and search(pattern[2:], site.path):
            return {**config, **rule}
    return config


def _skipped(config: Config, context: Context, site: Site) -> bool:
    names = next((config[key] for key in ("ignored_layers", "ignore", "modules_to_not_convert")
                  if key in config), None) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError("quantization config: its list of skipped layers",
                              wanted="a list of names", found=repr(names)[:60])
    path = site.path
    # Each model class replaces the mapper of the one around it (HummingConfig.apply_vllm_mapper).
    renamed = [rename(name, context.structure.renames[-1:]) for name in names]
    return is_skipped(config, renamed, path, search, lambda: refuse(
        "layer assignment", "TypeError", "'NoneType' object is not iterable", site.blamed,
        f"{SOURCE}:HummingConfig.is_layer_skipped",
        hint="Remove the empty field dynamic from the quantization config."))


def _need(config: Config, name: str, site: Site) -> Any:
    if name not in config:
        raise refuse("layer assignment", "KeyError", f"'{name}'", site.blamed,
                     f"{SOURCE}:compressed_tensors_get_config",
                     hint="Drop --quantization humming: the checkpoint's own method reads it.")
    return config[name]
