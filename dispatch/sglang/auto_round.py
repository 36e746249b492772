"""AutoRound checkpoints, layer by layer as GPTQ or AWQ (layers/quantization/auto_round.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.expressions import search
from quantplan.dispatch.sglang import awq, gptq
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import (
    Experts,
    check_backend_is_auto,
    marlin_serves_experts,
    unquantized_experts,
    wna16_experts,
)
from quantplan.dispatch.sglang.fields import Config, given, names, need, whole
from quantplan.dispatch.sglang.names import marlin_serves
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError, NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/auto_round.py:AutoRoundConfig"
BITS = (8, 2, 3, 4)
FORMATS = ("auto_round:auto_gptq", "auto_round:auto_awq")
BACKENDS = ("auto", "gptq", "gptq:marlin", "awq", "awq:marlin", "marlin")
"""AutoRoundConfig.SUPPORTED_BITS, _FORMATS and _BACKENDS: sets. Python prints numbers in this
order, texts in another one in every process."""
SPECIAL = frozenset("*+?^$()[]{}|\\")
"""What makes a name in extra_config an expression."""
MAPPED = "fused_qkv_a_proj"
"""The fused layer whose model class gives the config class its leaves."""
PLAIN_BITS = 16


class RoundLayer(NamedTuple):
    """How one layer is quantized: 16 bits and more are not at all."""

    bits: int
    group_size: int
    sym: bool


class RoundFields(NamedTuple):
    """What AutoRoundConfig keeps; `whole` is how layers are quantized of which it says no more."""

    whole: RoundLayer
    blocks: tuple[str, ...]
    extra: Mapping[str, Mapping[str, Any]]
    gptq: bool
    backend: str
    desc_act: bool

    @property
    def marlin(self) -> bool:
        """Return whether Marlin is asked at all."""
        return self.backend == "auto" or "marlin" in self.backend


def read(config: Config | None, context: Context) -> RoundFields:
    """Return the fields, or refuse as AutoRoundConfig does."""
    assert config is not None, "the class asks for a file first"
    bits, group_size, sym = (need(config, key) for key in ("bits", "group_size", "sym"))
    packing = given(config, "packing_format", default=FORMATS[0])
    backend = given(config, "backend", "vllm_backend", "sglang_backend", default="auto")
    for value, field, known, gap in (
            (bits, "weight_bits", BITS, " "),
            (given(config, "data_type", default="int"), "data_type", ("int",), " "),
            (packing, "packing_format", FORMATS, " "), (backend, "backend", BACKENDS, "  ")):
        if value not in known:
            raise refuse("config fields", "ValueError", f"Unsupported {field}: {value},{gap}"
                         f"currently only support  {{{', '.join(map(repr, known))}}}", None, SOURCE,
                         hint=f"Serve a checkpoint whose {field} is one of these.")
    return RoundFields(RoundLayer(bits, whole(group_size, "group_size"), sym is True),
                       _blocks(config), _extra(config), "gptq" in packing or "gptq" in backend,
                       backend, bool(given(config, "desc_act", default=False)))


def _blocks(config: Config) -> tuple[str, ...]:
    named = given(config, "block_name_to_quantize", "to_quant_block_names")
    return names(named.split(",") if isinstance(named, str) else named, "block_name_to_quantize")


def _extra(config: Config) -> Mapping[str, Mapping[str, Any]]:
    extra = given(config, "extra_config") or {}
    if not isinstance(extra, Mapping) or not all(isinstance(x, Mapping) for x in extra.values()):
        raise CheckpointError("quantization config: extra_config", wanted="an object of objects",
                              found=repr(extra)[:60])
    return extra


def assign(fields: RoundFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer or of lm_head (get_layer_config)."""
    head = site.module.module == "ParallelLMHead"
    if site.module.split == "vocab" and not head:
        return None
    layer = _layer(fields, context, site, head)
    if layer.bits >= PLAIN_BITS:
        return unquantized("neither its block nor extra_config says that it is quantized")
    return (_gptq if fields.gptq else _awq)(fields, layer, context, site)


def experts(
    fields: RoundFields, context: Context, site: Site, held: Experts
) -> Assignment | None:
    """Return the assignment of routed experts: Marlin's, else those of moe_wna16."""
    layer = _experts_layer(fields, context, site)
    if layer.bits >= PLAIN_BITS:
        return unquantized_experts("neither their block nor extra_config says that they are "
                                   "quantized")
    fits = (_gptq_fits if fields.gptq else _awq_fits)(fields, layer, context)
    if not (fits and marlin_serves_experts(context, held, layer.group_size)):
        _check_plain(fields, layer, site)
        return wna16_experts(held, site, layer.bits, layer.group_size)
    if fields.gptq:
        check_backend_is_auto(context, site, gptq.EXPERTS, "GPTQMarlinMoEMethod")
        return Assignment("GPTQMarlinMoEMethod", "GPTQMarlinMoEScheme",
                          f"experts_marlin_w{layer.bits}")
    return awq.marlin_experts(layer.group_size, context, site, held)


def _layer(fields: RoundFields, context: Context, site: Site, head: bool) -> RoundLayer:
    name = site.path.rsplit(".", maxsplit=1)[-1]
    if fields.extra and name.startswith(MAPPED) and site.path not in fields.extra:
        raise NotKnownError("AutoRound's extra_config of a fused layer's parts",
                            hint="Its model class maps them.")
    return _named(fields, site.path, site.path in fields.extra or _is_quantized(
        fields, site.path, not head))


def _experts_layer(fields: RoundFields, context: Context, site: Site) -> RoundLayer:
    """Return how experts are quantized; refuses single experts that differ."""
    quantized = site.path in fields.extra or _is_quantized(fields, site.path, True)
    listed = [name for name in fields.extra if name.startswith(site.path)]
    found = {_named(fields, name, quantized) for name in listed if site.path not in fields.extra}
    if len(found) > 1:
        raise refuse("layer assignment", "ValueError", f"Fused MoE layer '{site.path}' requires "
                     "consistent quant config for all sub-layers", site.path, SOURCE,
                     hint="extra_config: give all experts of a layer one form.")
    return found.pop() if found else _named(fields, site.path, quantized)


def _is_quantized(fields: RoundFields, path: str, otherwise: bool) -> bool:
    return any(map(path.startswith, fields.blocks)) if fields.blocks else otherwise


def _named(fields: RoundFields, path: str, quantized: bool) -> RoundLayer:
    """Return what extra_config says of the path, by its name or an expression that it is."""
    plain = fields.whole if quantized else RoundLayer(PLAIN_BITS, -1, True)
    own = fields.extra.get(path)
    if own is None:
        own = next((form for name, form in fields.extra.items()
                    if SPECIAL & set(name) and _fits(name, path)), {})
    return RoundLayer(own.get("bits", plain.bits), own.get("group_size", plain.group_size),
                      own.get("sym", plain.sym))


def _fits(pattern: str, path: str) -> bool:
    """Return whether the whole path fits; what is no expression fits none."""
    try:
        return search(f"(?:{pattern})\\Z", path)
    except CheckpointError:
        return False


def _gptq_fits(fields: RoundFields, layer: RoundLayer, context: Context) -> bool:
    return (fields.marlin and (layer.bits, layer.sym) in gptq.TYPES
            and marlin_serves(context.table, layer.group_size, context.gpu.capability))


def _awq_fits(fields: RoundFields, layer: RoundLayer, context: Context) -> bool:
    return (fields.marlin and layer.bits == awq.BITS and not layer.sym
            and marlin_serves(context.table, layer.group_size, context.gpu.capability))


def _gptq(fields: RoundFields, layer: RoundLayer, context: Context, site: Site) -> Assignment:
    if _gptq_fits(fields, layer, context):
        return Assignment("GPTQMarlinLinearMethod", "GPTQMarlinLinearScheme",
                          f"marlin_w{layer.bits}",
                          refusal=gptq.bad_scales(layer.group_size, fields.desc_act, site))
    _check_plain(fields, layer, site)
    raise gptq.removed_kernel(site)


def _awq(fields: RoundFields, layer: RoundLayer, context: Context, site: Site) -> Assignment:
    if site.module.module == "ParallelLMHead":
        raise NotKnownError("lm_head of AutoRound in AWQ's format", hint="Leave it in 16 bits.")
    _check_plain(fields, layer, site)
    if _awq_fits(fields, layer, context):
        awq.check_marlin_shape(context, site, layer.group_size)
        return Assignment("AWQLinearMethod", "AWQMarlinLinearScheme", "marlin_w4")
    awq.check_plain(layer.group_size, site)
    return Assignment("AWQLinearMethod", "AWQLinearScheme", "awq")


def _check_plain(fields: RoundFields, layer: RoundLayer, site: Site) -> None:
    """Refuse what the config class of the layers that Marlin does not serve refuses."""
    if fields.gptq and fields.desc_act:
        raise refuse("layer assignment", "ValueError", "SGLang's AutoRound GPTQ loader supports "
                     "desc_act=False only. AutoRound auto_gptq export does not use act-order/"
                     "desc_act=True; if this checkpoint is a GPTQModel act-order checkpoint, use "
                     "`--quantization gptq` or `--quantization gptq_marlin` instead.", site.path,
                     SOURCE, hint="Serve a checkpoint without activation order.")
    if not fields.gptq and layer.bits != awq.BITS:
        raise awq.refused_bits(layer.bits, site.path)
