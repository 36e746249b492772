"""One linear layer of HummingLinearMethod: its weights and activations, what allocating them
raises, and what it computes (model_executor/layers/quantization/humming.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from quantplan.dispatch.humming_numbers import Input, Weight, number
from quantplan.dispatch.humming_schemas import Fault, Stored, weight_schema
from quantplan.dispatch.trace import Finding, refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.humming_activation import Asked, activation
from quantplan.dispatch.vllm.humming_findings import METHOD
from quantplan.dispatch.vllm.humming_inputs import Given, check_tensors, input_schema
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Config = Mapping[str, Any]
T = TypeVar("T")
SOURCE = "model_executor/layers/quantization/humming.py"


class Schemas(NamedTuple):
    """What a layer's weights and activations are asked to be: `stored` as the checkpoint has them,
    `forced` what they are turned into after loading, `given` and `forced_given` activations;
    `fallback` whether others may take their place."""

    stored: Config
    given: Config | None = None
    forced: Config | None = None
    forced_given: Config | None = None
    fallback: bool = True


class Made(NamedTuple):
    """The schemas of a layer, built."""

    stored: Stored
    given: Given | None
    forced: Stored | None
    forced_given: Given | None
    fallback: bool


def build(context: Context, site: Site, schemas: Schemas) -> Made:
    """Return a layer's schemas, or refuse as building them raises."""
    require_package(context, site)
    rules = context.table["humming"]

    def weights(config: Config | None) -> Stored | None:
        return weight_schema(rules, config) if config is not None else None

    def made() -> Made:
        stored = weight_schema(rules, schemas.stored)
        return Made(stored, input_schema(rules, schemas.given), weights(schemas.forced),
                    input_schema(rules, schemas.forced_given), schemas.fallback)

    return refusing(made, site)


def require_package(context: Context, site: Site) -> None:
    """Refuse where the package humming is absent; NotKnownError where that is not known."""
    present = context.facts["lib.humming"]
    if present is None:
        raise NotKnownError("whether the package humming is installed",
                            hint="Say --lib humming=on or off.")
    if not present:
        raise refuse("layer assignment", "ModuleNotFoundError", "No module named 'humming'",
                     site.blamed, "utils/humming.py:__getattr__", hint="Install humming-kernels.")


def refusing(step: Callable[[], T], site: Site) -> T:
    """Return what a step returns; what it raises becomes a refusal of the layer."""
    try:
        return step()
    except Fault as fault:
        raise refuse("layer assignment", fault.kind, fault.message, site.blamed,
                     f"{SOURCE}:HummingConfig.get_quant_config_for_layer",
                     hint="Drop --quantization humming, or give its variables another value.",
                     ) from None


def linear(context: Context, site: Site, schemas: Schemas) -> Assignment:
    """Return the assignment of a linear layer, or refuse as allocating its tensors raises."""
    return linear_of(context, site, build(context, site, schemas))


def linear_of(context: Context, site: Site, made: Made) -> Assignment:
    """Return the assignment of a layer whose schemas are built."""
    given = made.forced_given or made.given
    refusing(lambda: check_tensors(made.stored, given, site.shard.n, site.shard.k), site)
    weight = (made.forced or made.stored).weight
    asked = Asked(weight, context.gpu.capability, context.dtype, context.table["humming"])
    name = activation(asked, given.input if given else Input(), made.fallback)
    if name is None:
        return Assignment(METHOD, why=f"{weight.dtype} weights: no activation format of Humming "
                          "goes with them here, and loading fails")
    bits = number(name).bits
    act = "none" if bits == 16 else "group" if given and given.input.group else "per_token"
    return Assignment(METHOD, act=act, why=computed(weight, name), note=_ordered(site, made))


def _ordered(site: Site, made: Made) -> Finding | None:
    """Return what becomes of groups ordered by activation once the weights are read."""
    return Finding(
        "weight loading", "error", "humming-activation-order",
        f"{site.path}: the checkpoint's groups are ordered by activation (desc_act), which the "
        "package humming asserts away when it converts them: loading raises AssertionError",
        "Re-quantize with desc_act=False, or serve it with an engine that still has g_idx.",
        f"{SOURCE}:HummingLinearMethod.process_weights_after_loading",
    ) if made.stored.ordered else None


def computed(weight: Weight, name: str) -> str:
    """Return what Humming computes with weights and activations of the format `name`."""
    groups = f" in groups of {weight.group}" if weight.group else ""
    return (f"Humming W{number(weight.dtype).bits}A{number(name).bits}: {weight.dtype} weights"
            f"{groups}, {name} activations")
