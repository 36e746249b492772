"""--quantization humming: HummingConfig, on a 16-bit checkpoint or on top of another method's
(layers/quantization/humming.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.expressions import search
from quantplan.dispatch.humming_config import group_part, is_skipped
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.expert_formats import MXFP4
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, given, names
from quantplan.dispatch.sglang.humming_layer import (
    SOURCE,
    Schemas,
    build,
    check_runner,
    experts_of,
    linear_of,
)
from quantplan.dispatch.sglang.renames import all_renamed
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError, UsageError

ONLINE, INPUT = "SGLANG_HUMMING_ONLINE_QUANT_CONFIG", "SGLANG_HUMMING_INPUT_QUANT_CONFIG"
GROUPED = ("compressed-tensors", "modelopt")
"""Methods whose layers are described by config groups."""
OWN = {"quant_method": "humming"}
W4AFP8: Config = {"quant_method": "fp8", "activation_scheme": "dynamic",
                  "weight_block_size": [128, 128]}
"""What HummingConfig makes of w4afp8's linear layers."""


def read(config: Config | None, context: Context) -> Config:
    """Return the checkpoint's config, an empty one without; refuses where the package is absent."""
    present = context.facts["lib.humming"]
    if present is None:
        raise NotKnownError("whether the package humming is installed",
                            hint="Say --lib humming=on or off.")
    if not present:
        raise refuse("config fields", "ImportError", "Humming quantization requires "
                     "`humming-kernels`. Please install it to use `--quantization humming`.", None,
                     f"{SOURCE}:_lazy_import_humming", hint="Install humming-kernels.")
    if (config or {}).get("quant_method") == "w4afp8" and not {
            "group_size", "weight_block_size"}.isdisjoint(config or {}):
        raise NotKnownError("w4afp8 with sizes of its own under humming",
                            hint="Drop --quantization humming.")
    return config or {}


def assign(fields: Config, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; None for embeddings and lm_head, whose schemas the
    engine builds all the same."""
    schemas = schemas_of(_of_linear(fields), fields, context, site)
    made = build(context, site, schemas) if schemas is not None else None
    if site.module.split == "vocab":
        return None
    if made is None:
        return unquantized("skipped, in no group for Linear, or no config says what it is to be")
    return linear_of(context, site, made)


def experts(fields: Config, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts."""
    if fields.get("quant_method") == "fp8" and context.facts["experts.format"] == MXFP4:
        raise NotKnownError("packed MXFP4 experts under humming", hint="Drop --quantization.")
    packed = fields.get("quant_method") == "w4afp8"
    stored = {"quant_method": "w4afp8"} if packed else fields
    schemas = schemas_of(stored, fields, context, site)
    if schemas is None:
        return unquantized_experts("skipped, or no config says what they are to be", "nothing")
    made = build(context, site, schemas)
    assignment = experts_of(context, site, made, held)
    check_runner(context, site)
    return assignment


def check_attention(fields: Config, context: Context, site: Site) -> None:
    """Refuse what building the schemas of an attention layer raises: they are built and dropped."""
    schemas = schemas_of(_of_linear(fields), fields, context, site)
    if schemas is not None:
        build(context, site, schemas)


def _of_linear(fields: Config) -> Config:
    return W4AFP8 if fields.get("quant_method") == "w4afp8" else fields


def schemas_of(stored: Config, whole: Config, context: Context, site: Site) -> Schemas | None:
    """Return what the layer is asked to be, or None for one that stays in 16 bits; `stored` is the
    config of its weights, `whole` the checkpoint's
    (HummingConfig.get_quant_config_for_layer)."""
    online = _variable(ONLINE, context)
    again = online and (not whole or online.get("force_requant", False))
    layer = _layer(stored, "weights", context, site) if stored else None
    own = _layer({**online, **OWN}, "weights", context, site) if again else None
    forced = own if whole else None
    weights = layer if whole else own
    if weights is None:
        return None
    variable = _variable(INPUT, context)
    inputs = _of_linear(whole)
    return Schemas(weights, _layer(inputs, "input_activations", context, site) if inputs else None,
                   forced, _layer({**variable, **OWN}, "input", context, site) if variable else (
                       None if forced is None else OWN), online=not whole)


def _variable(name: str, context: Context) -> Mapping[str, Any]:
    value = context.facts[f"env.{name}"]
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"environment variable {name}", wanted="a JSON object",
                         found=repr(value)[:60])
    return value or {}


def _layer(config: Config, part: str, context: Context, site: Site) -> Config | None:
    """Return the config of one layer: of its group for Linear, with the `dynamic` rule that fits
    its weights; None for a layer that is skipped or has no such part."""
    if _skipped(config, context, site):
        return None
    if _need(config, "quant_method", site) in GROUPED:
        group = group_part(config, part, lambda held, name: _need(held, name, site))
        if group is None:
            return None
        config = group
    rules = config.get("dynamic", {})
    if part == "weights" and isinstance(rules, Mapping):
        for pattern, rule in rules.items():
            if pattern.startswith("+") and search(pattern[2:], site.path):
                return {**config, **rule}
    return config


def _skipped(config: Config, context: Context, site: Site) -> bool:
    ignored = names(given(config, "ignored_layers", "ignore", "modules_to_not_convert"),
                    "ignored_layers")
    renamed = all_renamed(context, ignored) if context.renames else ignored
    path = site.path
    return is_skipped(config, renamed, path, search, lambda: refuse(
        "layer assignment", "TypeError", "'NoneType' object is not iterable", path,
        f"{SOURCE}:HummingConfig.is_layer_skipped",
        hint="Remove the empty field dynamic from the quantization config."))


def _need(config: Config, name: str, site: Site) -> Any:
    if name not in config:
        raise refuse("layer assignment", "KeyError", f"'{name}'", site.path,
                     f"{SOURCE}:HummingConfig.get_layer_weight_schema",
                     hint="Drop --quantization humming: the checkpoint's own method reads it.")
    return config[name]
