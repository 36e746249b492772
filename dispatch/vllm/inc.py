"""Which scheme serves a layer of an AutoRound checkpoint
(model_executor/layers/quantization/inc/: config_parser.py, schemes/)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.expressions import finds
from quantplan.dispatch.trace import Refusal, refuse
from quantplan.dispatch.vllm import awq, fp8, gptq, humming_layer
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.ct_layers import mxfp4_quant
from quantplan.dispatch.vllm.inc_config import Group, IncFields, check, group_size, read
from quantplan.dispatch.vllm.integers import integer_quant, marlin_input_dtype, marlin_unsupported
from quantplan.tables.record import NamedTuple

__all__ = ["IncLayer", "assign", "check", "layer_config", "read"]
SCHEMES = "model_executor/layers/quantization/inc/schemes"
PARSER_SOURCE = (
    "model_executor/layers/quantization/inc/config_parser.py:INCConfigParser._resolve_raw")
METHOD = "INCLinearMethod"
SPECIAL = frozenset(r"*+?^$()[]{}|\\")
"""A key of extra_config with one of these is a regular expression."""


class IncLayer(NamedTuple):
    """What the config says of one layer (config_parser.py:INCLayerConfig)."""

    bits: Any
    group: Group
    sym: Any
    packing: str
    backend: str
    data_type: str

    @property
    def quantized(self) -> bool:
        """Return whether the weights have fewer than 16 bits."""
        return bool(self.bits < 16)

    def packed_for(self, name: str) -> bool:
        """Return whether its packing or its backend names gptq or awq."""
        return name in self.packing or name in self.backend

    def __str__(self) -> str:
        return (f"INCLayerConfig(bits={self.bits}, group_size={self.group}, sym={self.sym}, "
                f"packing_format={self.packing!r}, backend={self.backend!r}, "
                f"data_type={self.data_type!r}, quantized={self.quantized})")


def assign(fields: IncFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer or lm_head; None for embeddings."""
    weightless = site.module.split == "vocab" and not site.is_head
    plain = None if weightless else Assignment("UnquantizedLinearMethod",
                                               why="16 bits by extra_config or its block")
    if plainly_16_bit(fields, site.path):
        return plain
    layer = layer_config(fields, context, site)
    if not layer.quantized:
        return plain
    scheme = scheme_of(layer, site)
    return None if weightless else LINEAR[scheme](layer, context, site)


def plainly_16_bit(fields: IncFields, path: str) -> bool:
    """Return whether extra_config names the layer itself, with 16 bits."""
    names = (path, f"model.{path}")
    return any(fields.extra[name].get("bits", 16) >= 16 for name in names if name in fields.extra)


def layer_config(fields: IncFields, context: Context, site: Site) -> IncLayer:
    """Return what the config says of a layer: its own entry, a suffix, its parts, its block."""
    bits, group, sym = _resolve(fields, context, site)
    return IncLayer(bits, group, sym, fields.packing, fields.backend, fields.data_type)


Numbers = tuple[Any, Group, Any]


def _resolve(fields: IncFields, context: Context, site: Site) -> Numbers:
    path = site.path
    named = next((key for key in (path, *fields.extra) if key in fields.extra and (
        key == path or path.endswith(f".{key}"))), None)
    if named is not None:
        return _entry(fields, named, True)
    quantized = site.module.module != "ParallelLMHead"
    if fields.blocks:
        quantized = any(path.startswith(block) for block in fields.blocks)
    for fused, leaves in (context.structure.packed.items() if fields.extra else ()):
        if path.count(fused) == 1:
            parts = [path.replace(fused, leaf) for leaf in leaves]
            if any(_configured(fields, part) for part in parts):
                return _agreed(fields, path, parts, quantized)
    return _entry(fields, path, quantized)


def _agreed(fields: IncFields, path: str, parts: list[str], quantized: bool) -> Numbers:
    found = {_entry(fields, part, quantized) for part in parts}
    if len(found) > 1:
        raise refuse("layer assignment", "ValueError",
                     f"Fused module '{path}' requires consistent quant config for {parts}", path,
                     PARSER_SOURCE, hint="Give every part of the fused layer the same entry.")
    return found.pop()


def _configured(fields: IncFields, name: str) -> bool:
    return name in fields.extra or any(_fits(pattern, name) for pattern in fields.extra)


def _fits(pattern: str, name: str) -> bool:
    return not SPECIAL.isdisjoint(pattern) and finds(pattern, name)


def _entry(fields: IncFields, name: str, quantized: bool) -> Numbers:
    """Return bits, group and symmetry of a name: its entry's, the first fitting expression's, or
    those of the whole config."""
    bits, group, sym = (fields.bits, fields.group, fields.sym) if quantized else (16, -1, True)
    key = name if name in fields.extra else next(
        (pattern for pattern in fields.extra if _fits(pattern, name)), None)
    if key is None:
        return bits, group, sym
    own = fields.extra[key]
    return own.get("bits", bits), _own_group(own.get("group_size", group), name), own.get("sym",
                                                                                          sym)


def _own_group(value: Any, name: str) -> Group:
    """Return a layer's own group size; its error is one of building the layer."""
    try:
        return group_size(value)
    except Refusal as refusal:
        raise Refusal(refusal.error._replace(stage="layer assignment", type="ValueError",
                                             layer=name)) from None


def scheme_of(layer: IncLayer, site: Site) -> str:
    """Return the scheme class of a layer, or refuse as the engine does when there is none
    (schemes/factory.py:resolve_scheme)."""
    pair = isinstance(layer.group, tuple)
    if (layer.data_type == "fp" and layer.bits == 8 and layer.sym and pair
            and layer.packing == "auto_round:fp8"):
        return "INCFp8Scheme"
    if "mx_fp" in layer.data_type and layer.bits == 8:
        return "INCMxfp8Scheme"
    if layer.data_type == "int":
        return "INCWna16Scheme"
    if "mx_fp" in layer.data_type and layer.bits == 4:
        return "INCMxfp4Scheme"
    raise refuse("layer assignment", "NotImplementedError",
                 f"No INC scheme found for layer config: {layer}", site.blamed,
                 f"{SCHEMES}/factory.py:resolve_scheme")


def _fp8(layer: IncLayer, context: Context, site: Site) -> Assignment:
    marlin_input_dtype(context, site)
    block = (layer.group[0], layer.group[1]) if isinstance(layer.group, tuple) else (0, 0)
    fp8.check_block_shape(site, block, context.deployment.tp)
    return Assignment(METHOD, None, "fp8_block_w8a8", fp8.block_quant(block), "group")


def _mxfp8(layer: IncLayer, context: Context, site: Site) -> Assignment:
    if site.shard.k % 32:
        raise refuse("shapes under TP", "ValueError",
                     f"INC MXFP8 requires input_size_per_partition ({site.shard.k}) to be "
                     "divisible by 32.", site.path,
                     f"{SCHEMES}/inc_mxfp8_linear.py:INCMxfp8LinearScheme.create_weights")
    return Assignment(METHOD, None, "mxfp8", {}, "group")


def _mxfp4(layer: IncLayer, context: Context, site: Site) -> Assignment:
    if isinstance(layer.group, tuple):
        raise refuse("layer assignment", "ValueError",
                     "INC MXFP4 requires scalar group_size, but found "
                     f"group_size={layer.group!r}.", site.path,
                     f"{SCHEMES}/inc_mxfp4_linear.py:INCMxfp4LinearMethod.__init__")
    return Assignment(METHOD, None, "mxfp4", mxfp4_quant(context, "mxfp4", 32), "group")


def _integer(layer: IncLayer, context: Context, site: Site) -> Assignment:
    low = layer.bits in context.table["inc"]["humming_bits"]
    if isinstance(layer.group, tuple):
        kind, words = ("TypeError", "unsupported operand type(s) for //: 'int' and 'tuple'"
                       ) if low else ("AssertionError", "WNA16 only supports integer group_size.")
        raise refuse("layer assignment", kind, words, site.path,
                     f"{SCHEMES}/inc_wna16_linear.py:INCWNA16LinearScheme")
    if low:
        return humming_layer.linear(context, site, humming_layer.Schemas(integer_config(layer)))
    return (_gptq if layer.packed_for("gptq") else _awq)(layer, layer.group, context, site)


def integer_config(layer: IncLayer) -> dict[str, Any]:
    """Return what a GPTQ or AWQ checkpoint would say of the layer."""
    return {"quant_method": "gptq" if layer.packed_for("gptq") else "awq", "bits": layer.bits,
            "group_size": layer.group, "sym": layer.sym, "zero_point": not layer.sym}


def _not_marlin(
    layer: IncLayer, group: int, weight_type: str | None, context: Context
) -> str | None:
    """Return why Marlin's list is not asked, or None where it is."""
    if weight_type is None or not (layer.backend == "auto" or "marlin" in layer.backend):
        return f"backend {layer.backend} with {layer.bits} bits asks for no Marlin"
    return marlin_unsupported(context.gpu.capability, weight_type, group, not layer.sym)


def _gptq(layer: IncLayer, group: int, context: Context, site: Site) -> Assignment:
    source = f"{SCHEMES}/inc_wna16_linear.py:INCWNA16LinearScheme._build_gptq_method"
    if isinstance(layer.sym, (dict, list)):
        raise refuse("layer assignment", "TypeError",
                     f"unhashable type: '{type(layer.sym).__name__}'", site.path, source,
                     hint="config.json: sym is true or false.")
    weight_type = gptq.WEIGHT_TYPES.get((layer.bits, layer.sym))
    if weight_type is None or _not_marlin(layer, group, weight_type, context):
        raise refuse("layer assignment", "NotImplementedError",
                     f"INC quantization with bits={layer.bits}, sym={layer.sym} is not supported. "
                     "Only 4-bit and 8-bit symmetric quantization is supported with Marlin "
                     "kernels.", site.path, source,
                     hint="Marlin also wants groups of 32, 64, 128 or -1, and 7.5 or newer.")
    quant = integer_quant(site, weight_type, layer.bits, group, False, context.dtype)
    return Assignment(METHOD, None, "mixed_precision", quant, "none")


def _awq(layer: IncLayer, group: int, context: Context, site: Site) -> Assignment:
    weight_type = {4: "uint4", 8: "uint8"}.get(layer.bits)
    reason = _not_marlin(layer, group, weight_type, context)
    awq.check_bits(layer.bits, site.path)
    if reason:
        awq.check_alignment(site, layer.bits, group)
        return Assignment(METHOD, act="none", why=f"plain AWQ, W4A16: {reason}")
    quant = integer_quant(site, str(weight_type), layer.bits, group, True, context.dtype)
    return Assignment(METHOD, None, "mixed_precision", quant, "none")


LINEAR: Mapping[str, Callable[[IncLayer, Context, Site], Assignment]] = {
    "INCFp8Scheme": _fp8, "INCMxfp8Scheme": _mxfp8, "INCWna16Scheme": _integer,
    "INCMxfp4Scheme": _mxfp4,
}
"""Scheme class -> what makes its assignment of a linear layer."""
