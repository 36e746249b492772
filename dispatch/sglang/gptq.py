"""GPTQ checkpoints, which only Marlin serves (layers/quantization/gptq/gptq.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.expressions import search
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, check_backend_is_auto
from quantplan.dispatch.sglang.fields import Config, given, need, whole
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/gptq/gptq.py:GPTQMarlinConfig"
EXPERTS = "hardware_backend/gpu/quantization/gptq_kernels.py:GPTQMarlinMoEKernel.create_moe_runner"
DYNAMIC = "layers/quantization/utils.py:get_dynamic_override"
TYPES = ((4, True), (8, True))
"""(bits, sym) that GPTQMarlinConfig.TYPE_MAP has."""
PLAIN = "layers/quantization/gptq/schemes/gptq_linear.py:GPTQLinearScheme"
PLAIN_BITS = (2, 3, 4, 8)
"""Bits that GPTQConfig takes."""
SCALES, SINGLE_SCALES = 64, 32
"""Scales in a row of Marlin's order, of groups and of whole columns (get_scale_perms)."""


class GptqFields(NamedTuple):
    """What GPTQMarlinConfig keeps."""

    bits: int
    sym: bool
    group_size: int
    desc_act: bool
    lm_head: bool
    dynamic: Mapping[str, Any]


def read(config: Config | None, context: Context) -> GptqFields:
    """Return the fields, or refuse as the config class does."""
    fields = read_plain(config)
    _check_type(fields.bits, fields.sym)
    return fields


def read_plain(config: Config | None) -> GptqFields:
    """Return the fields of a checkpoint that Marlin may not serve."""
    assert config is not None, "the class asks for a file first"
    dynamic = given(config, "dynamic")
    dynamic = {} if dynamic is None else dynamic
    if not isinstance(dynamic, Mapping):
        raise _no_object(dynamic, "items")
    bits, group_size, desc_act, sym = (
        need(config, key) for key in ("bits", "group_size", "desc_act", "sym"))
    return GptqFields(bits, sym, whole(group_size, "group_size"), bool(desc_act),
                      bool(given(config, "lm_head", default=False)), dynamic)


def _no_object(value: Any, asked: str, path: str | None = None) -> Exception:
    return refuse("layer assignment", "AttributeError", f"{type(value).__name__!r} object has no "
                  f"attribute {asked!r}", path, DYNAMIC,
                  hint="quantization_config: dynamic holds patterns, and an object for each.")


def _check_type(bits: Any, sym: Any, path: str | None = None) -> None:
    if (bits, sym) not in TYPES:
        raise refuse("config fields" if path is None else "layer assignment", "ValueError",
                     f"Unsupported quantization config: bits={bits}, sym={sym}", path, SOURCE,
                     hint="Serve a symmetric checkpoint of 4 or 8 bits.")


def assign(fields: GptqFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer, of lm_head where the checkpoint quantizes it."""
    head = site.module.split == "vocab"
    if head and not (fields.lm_head and site.module.module == "ParallelLMHead"):
        return None
    rule = _rule(fields, site.path)
    if rule is None:
        return None if head else unquantized("a rule of dynamic leaves it alone")
    if not site.path:
        raise NotKnownError(f"SGLang's {site.module.path} under GPTQ",
                            hint="Its class gives it no name, for which the engine copies the "
                            "quantization config without reading it again.")
    bits, sym = _over(rule, "bits", int, fields.bits), _over(rule, "sym", bool, fields.sym)
    _check_type(bits, sym, site.path)
    group_size = _over(rule, "group_size", int, fields.group_size)
    desc_act = _over(rule, "desc_act", bool, fields.desc_act)
    return Assignment("GPTQMarlinLinearMethod", "GPTQMarlinLinearScheme", f"marlin_w{bits}",
                      refusal=bad_scales(group_size, desc_act, site))


def assign_plain(fields: GptqFields, site: Site) -> Assignment:
    """Return the assignment of a linear layer that a rule of `dynamic` leaves alone; refuses any
    other, which GPTQConfig has no kernel for."""
    rule = _rule(fields, site.path)
    if rule is None:
        return unquantized("a rule of dynamic leaves it alone")
    for bits in (fields.bits, rule.get("bits", fields.bits)):
        if bits not in PLAIN_BITS:
            raise refuse("layer assignment", "ValueError", "Currently, only 2/3/4/8-bit weight "
                         f"quantization is supported for GPTQ, but got {bits} bits.", site.path,
                         "layers/quantization/gptq/gptq.py:GPTQConfig",
                         hint="Serve a checkpoint of 4 or 8 bits.")
    raise removed_kernel(site)


def removed_kernel(site: Site) -> Exception:
    """Return the refusal of a layer that Marlin does not serve."""
    return refuse("layer assignment", "RuntimeError", "The non-Marlin GPTQ CUDA kernel has been "
                  "removed. Use quantization='gptq_marlin' (or a Marlin-compatible checkpoint) "
                  "instead.", site.path, PLAIN,
                  hint="Marlin serves 4 or 8 bits, symmetric, in groups of 32, 64, 128 or -1.")


def _over(rule: Mapping[str, Any], key: str, wanted: type, own: Any) -> Any:
    """Return what a rule of `dynamic` changes a field to: values of other types change nothing
    (layers/quantization/utils.py:override_config)."""
    value = rule.get(key)
    return value if isinstance(value, wanted) else own


def bad_scales(group_size: int, desc_act: bool, site: Site) -> Exception | None:
    """Return the refusal of scales that do not fill whole rows of Marlin's order
    (layers/quantization/marlin_utils.py:marlin_permute_scales)."""
    cut, size = site.shard, site.shard.k_full if group_size == -1 else group_size
    repeated = cut.k_full != cut.k and (desc_act or group_size == -1)
    scales = (cut.k_full if repeated else cut.k) // size * cut.n
    return odd_scales(scales, group_size != -1 and group_size < cut.k, site)


def odd_scales(scales: int, grouped: bool, site: Site) -> Exception | None:
    """Return the refusal of this many scales, which are of groups of input features or of whole
    columns, where they do not fill rows of Marlin's order."""
    row = SCALES if grouped else SINGLE_SCALES
    if scales % row == 0:
        return None
    return refuse("weight loading", "RuntimeError",
                  f"shape '[-1, {row}]' is invalid for input of size {scales}", site.path,
                  "layers/quantization/marlin_utils.py:marlin_permute_scales",
                  hint=f"A rank's {site.shard.n} output features have to be whole tiles of {row}.")


def experts(fields: GptqFields, context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of routed experts, which no rule of `dynamic` reaches."""
    check_backend_is_auto(context, site, EXPERTS, "GPTQMarlinMoEMethod")
    return Assignment("GPTQMarlinMoEMethod", "GPTQMarlinMoEScheme",
                      f"experts_marlin_w{fields.bits}")


def _rule(fields: GptqFields, path: str) -> Mapping[str, Any] | None:
    """Return what the first rule of `dynamic` that fits changes, None where it leaves the layer
    alone (get_dynamic_override)."""
    for pattern, changes in fields.dynamic.items():
        if search(pattern.removeprefix("-:").removeprefix("+:"), path):
            if pattern.startswith("-:"):
                return None
            if not isinstance(changes, Mapping):
                raise _no_object(changes, "get", path)
            return changes
    return {}
