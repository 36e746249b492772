"""AutoRound checkpoints, layer by layer as GPTQ or AWQ (layers/quantization/auto_round.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quantplan.dispatch.sglang import awq, gptq
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.fields import Config, given, names, need, whole
from quantplan.dispatch.sglang.names import marlin_serves
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError, NotKnownError

SOURCE = "layers/quantization/auto_round.py:AutoRoundConfig"
KERNEL = "layers/quantization/gptq/schemes/gptq_linear.py:GPTQLinearScheme"
BITS = (8, 2, 3, 4)
FORMATS = ("auto_round:auto_gptq", "auto_round:auto_awq")
BACKENDS = ("auto", "gptq", "gptq:marlin", "awq", "awq:marlin", "marlin")
"""AutoRoundConfig.SUPPORTED_BITS (in the order in which Python prints the set), _FORMATS and
_BACKENDS."""


class RoundFields(NamedTuple):
    """What AutoRoundConfig keeps."""

    bits: int
    group_size: int
    sym: bool
    blocks: tuple[str, ...]
    extra: Mapping[str, Mapping[str, Any]]
    gptq: bool
    backend: str
    desc_act: bool


def read(config: Config | None, context: Context) -> RoundFields:
    """Return the fields, or refuse as AutoRoundConfig does."""
    assert config is not None, "the class asks for a file first"
    bits, group_size, sym = (need(config, key) for key in ("bits", "group_size", "sym"))
    packing = given(config, "packing_format", default=FORMATS[0])
    backend = given(config, "backend", "vllm_backend", "sglang_backend", default="auto")
    if bits not in BITS:
        raise refuse("config fields", "ValueError", f"Unsupported weight_bits: {bits}, currently "
                     f"only support  {{{', '.join(map(str, BITS))}}}", None, SOURCE,
                     hint="Serve a checkpoint of 4 or 8 bits.")
    for value, known, field in ((given(config, "data_type", default="int"), ("int",), "data_type"),
                                (packing, FORMATS, "packing_format"),
                                (backend, BACKENDS, "backend")):
        if value not in known:
            raise NotKnownError(f"SGLang's words for an AutoRound {field} of {value}",
                                wanted="one of " + ", ".join(known),
                                hint="It refuses it, and prints a set in no fixed order.")
    if given(config, "dynamic"):
        raise NotKnownError("AutoRound with rules of dynamic", hint="Serve it as GPTQ.")
    return RoundFields(bits, whole(group_size, "group_size"), sym is True, _blocks(config),
                       _extra(config), "gptq" in packing or "gptq" in backend, backend,
                       bool(given(config, "desc_act", default=False)))


def _blocks(config: Config) -> tuple[str, ...]:
    named = given(config, "block_name_to_quantize", "to_quant_block_names")
    return names(named.split(",") if isinstance(named, str) else named, "block_name_to_quantize")


def _extra(config: Config) -> Mapping[str, Mapping[str, Any]]:
    extra = given(config, "extra_config") or {}
    if not isinstance(extra, Mapping) or not all(isinstance(x, Mapping) for x in extra.values()):
        raise CheckpointError("quantization config: extra_config", wanted="an object of objects",
                              found=repr(extra)[:60])
    if any(set(name) & set("*+?^$()[]{}|\\") for name in extra):
        raise NotKnownError("AutoRound's extra_config with expressions",
                            hint="Name layers by their whole paths.")
    return extra


def assign(fields: RoundFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer or of lm_head (get_layer_config)."""
    head = site.module.module == "ParallelLMHead"
    if site.module.split == "vocab" and not head:
        return None
    layer = _layer(fields, context, site, head)
    if layer[0] >= 16:
        return unquantized("neither its block nor extra_config says that it is quantized")
    make = _gptq if fields.gptq else _awq
    return make(fields, layer, context, site)


def _layer(
    fields: RoundFields, context: Context, site: Site, head: bool
) -> tuple[int, int, bool]:
    """Return the layer's bits, group size and symmetry."""
    quantized = any(map(site.path.startswith, fields.blocks)) if fields.blocks else not head
    name = site.path.rsplit(".", maxsplit=1)[-1]
    if fields.extra and name in context.packed and site.path not in fields.extra:
        raise NotKnownError("AutoRound's extra_config of a fused layer's parts",
                            hint="Its model class maps them.")
    plain = (fields.bits, fields.group_size, fields.sym) if (
        quantized or site.path in fields.extra) else (16, -1, True)
    own = fields.extra.get(site.path, {})
    return (own.get("bits", plain[0]), own.get("group_size", plain[1]), own.get("sym", plain[2]))


def _marlin(fields: RoundFields) -> bool:
    return fields.backend == "auto" or "marlin" in fields.backend


def _gptq(
    fields: RoundFields, layer: tuple[int, int, bool], context: Context, site: Site
) -> Assignment:
    bits, group_size, sym = layer
    if _marlin(fields) and (bits, sym) in gptq.TYPES and marlin_serves(
            context.table, group_size, context.gpu.capability):
        return Assignment("GPTQMarlinLinearMethod", "GPTQMarlinLinearScheme", f"marlin_w{bits}")
    if fields.desc_act:
        raise NotKnownError("AutoRound in GPTQ's format with desc_act, without Marlin",
                            hint="SGLang refuses it.")
    raise refuse("layer assignment", "RuntimeError", "The non-Marlin GPTQ CUDA kernel has been "
                 "removed. Use quantization='gptq_marlin' (or a Marlin-compatible checkpoint) "
                 "instead.", site.path, KERNEL,
                 hint="Marlin serves 4 or 8 bits, symmetric, in groups of 32, 64, 128 or -1.")


def _awq(
    fields: RoundFields, layer: tuple[int, int, bool], context: Context, site: Site
) -> Assignment:
    bits, group_size, sym = layer
    if site.module.module == "ParallelLMHead":
        raise NotKnownError("lm_head of AutoRound in AWQ's format", hint="Leave it in 16 bits.")
    if bits != 4:
        raise awq.refused_bits(bits, site.path)
    if _marlin(fields) and not sym and marlin_serves(context.table, group_size,
                                                     context.gpu.capability):
        awq.check_marlin_shape(context, site, group_size)
        return Assignment("AWQLinearMethod", "AWQMarlinLinearScheme", "marlin_w4")
    awq.check_plain(group_size, site)
    return Assignment("AWQLinearMethod", "AWQLinearScheme", "awq")
