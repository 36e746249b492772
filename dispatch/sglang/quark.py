"""Checkpoints that Quark wrote (layers/quantization/quark/quark.py:QuarkConfig)."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.sglang import fp8
from quantplan.dispatch.sglang.context import NO_EXCHANGE, Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, check_method, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, names, sub
from quantplan.dispatch.sglang.fp8 import Fp8Fields
from quantplan.dispatch.sglang.quark_names import Named, layer_config, with_quark_leaves
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/quark/quark.py:QuarkConfig"
FP8 = "fp8_e4m3"
FP8_NAMES = (FP8, "fp8_e4m3fn")
MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
"""What weights of MXFP4, and activations of it, are called."""

QUERY = "*q_proj"
"""Whose outputs are left out along with those of keys and values."""
WRITTEN = ("dtype", "qscheme", "group_size", "is_dynamic", "scale_format")
"""Keys of a part in the order in which they are written."""


class QuarkFields(NamedTuple):
    """What QuarkConfig keeps: the names that it leaves alone, which layers have which config, and
    that of the KV cache."""

    exclude: tuple[str, ...]
    named: Named
    kv_cache: Config | None


def read(config: Config | None, context: Context) -> QuarkFields:
    """Return the fields, or refuse as QuarkConfig does."""
    assert config is not None, "the class is refused without a config first"
    method = own_method(config)
    if method != "quark":
        raise _refused("QuarkConfig.from_config invoked with non-quark quant_method "
                       f"{method!r} but no requantization_method set.",
                       "Spell quant_method in lower case.")
    if config.get("export") is None:
        raise _refused("The export key should be included in the configurations of Quark quantized "
                       "model", "quantization_config: add export.")
    exported = sub(config, "export").get("kv_cache_group")
    for value, said in ((exported, "object of type 'NoneType' has no len()"),
                        (config.get("layer_quant_config"), "'NoneType' object is not iterable"),
                        (config.get("layer_type_quant_config"),
                         "argument of type 'NoneType' is not iterable")):
        if value is None:
            raise refuse("config fields", "TypeError", said, None, SOURCE, hint=
                         "quantization_config: add export.kv_cache_group, layer_quant_config and "
                         "layer_type_quant_config.")
    group, patterns = names(exported, "export: kv_cache_group"), sub(config, "layer_quant_config")
    return QuarkFields(names(config.get("exclude", ()), "exclude"),
                       Named(_without_outputs(patterns, group),
                             sub(config, "layer_type_quant_config"),
                             config.get("global_quant_config")), _kv_cache(group, patterns))


def own_method(config: Config) -> Any:
    """Return quant_method; refuses a config without it, where the engine looks it up bare."""
    if "quant_method" not in config:
        raise refuse("config fields", "KeyError", "'quant_method'", None, f"{SOURCE}.from_config",
                     hint="quantization_config: add quant_method.")
    return config["quant_method"]


def _refused(message: str, hint: str) -> Exception:
    return refuse("config fields", "ValueError", message, None, f"{SOURCE}.from_config", hint=hint)


def _without_outputs(patterns: Config, group: tuple[str, ...]) -> Config:
    """Return the configs without the outputs that the KV cache is made of."""
    bare = {*group, *([QUERY] if group else [])}
    return {name: {**sub(patterns, name), "output_tensors": None} if name in bare else config
            for name, config in patterns.items()}


def _kv_cache(listed: tuple[str, ...], patterns: Config) -> Config | None:
    """Return the config of the KV cache's outputs, None where no group of layers has one."""
    if not listed:
        return None
    if not set(listed) <= set(patterns):
        raise _refused("The Quark quantized model has the kv_cache_group parameter setting, but no "
                       "kv_cache quantization settings were found in the quantization "
                       "configuration.", "layer_quant_config: add the layers of kv_cache_group.")
    configs = [sub(patterns, name) for name in listed]
    if any(config != configs[0] for config in configs):
        raise _refused("The quantization method used for kv_cache should be the same, but the "
                       "quantization method for the kv_cache layer in the config is different.",
                       "layer_quant_config: give the layers of kv_cache_group one config.")
    if configs[0].get("output_tensors") is None:
        raise _refused("The kv_cache quantization configuration is empty.",
                       "layer_quant_config: add output_tensors.")
    return sub(configs[0], "output_tensors")


def check_attention(fields: QuarkFields, context: Context, site: Site) -> None:
    """Refuse a KV cache that QuarkKVCacheMethod does not have."""
    kv_cache = fields.kv_cache
    if kv_cache is None:
        return
    said = None
    if kv_cache.get("dtype") != FP8:
        said = (f"Currently supported kv cache quantization is dtype={FP8}, however received "
                f"{kv_cache.get('dtype')}")
    elif kv_cache.get("qscheme") != "per_tensor":
        said = ("Only support per-tensor scaling factor for quark KV cache. Expected qscheme: "
                f"per_tensor, found qscheme: {kv_cache.get('qscheme')}")
    if said is not None:
        raise refuse("layer assignment", "NotImplementedError", said, site.path,
                     "layers/quantization/quark/quark.py:QuarkKVCacheMethod",
                     hint="Quantize the KV cache per tensor to fp8_e4m3.")


def assign(fields: QuarkFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; embeddings and lm_head are none of the class's."""
    context = with_quark_leaves(context)
    config = layer_config(context, site.path, site.module.module, fields.exclude, fields.named)
    if site.module.split == "vocab":
        return None
    if config is None:
        return unquantized("named in exclude")
    if (block := _block(config, site)) is not None:
        return fp8.assign(block, context, site)
    return _linear(config, context, site)


def experts(fields: QuarkFields, context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of routed experts."""
    context = with_quark_leaves(context)
    config = layer_config(context, site.path, site.module.module, fields.exclude, fields.named)
    if config is None:
        return unquantized_experts("named in exclude")
    if (block := _block(config, site)) is not None:
        return fp8.experts(block, context, site, held)
    return _experts(config, context, site)


def _parts(config: Config, site: Site) -> tuple[Config, Config]:
    """Return how a layer's weights and activations are quantized; refuses quantized outputs."""
    if config.get("output_tensors") or config.get("bias"):
        raise refuse("layer assignment", "NotImplementedError", "Currently, Quark models with "
                     "output_tensors and bias quantized are not supported", site.path, SOURCE,
                     hint="Quantize weights and input_tensors only.")
    return _part(config, "weight", site), _part(config, "input_tensors", site)


def _part(config: Config, field: str, site: Site) -> Config:
    """Return how weights or activations are quantized; refuses what is quantized twice."""
    if isinstance(config.get(field), list):
        raise refuse("layer assignment", "AttributeError", "'list' object has no attribute 'get'",
                     site.path, SOURCE, hint="SGLang serves such a checkpoint on AMD GPUs only.")
    return sub(config, field)


def _block(config: Config, site: Site) -> Fp8Fields | None:
    """Return what serves FP8 weights in blocks with dynamic activations, None for others."""
    if config.get("output_tensors") or config.get("bias"):
        return None
    weight, inputs = _part(config, "weight", site), _part(config, "input_tensors", site)
    size = weight.get("block_size")
    fits = (weight.get("dtype") in FP8_NAMES and weight.get("qscheme") == "per_block"
            and weight.get("is_dynamic") is False and isinstance(size, list) and len(size) == 2
            and inputs.get("dtype") in FP8_NAMES and inputs.get("is_dynamic") is True)
    return Fp8Fields(True, "dynamic", (), fp8.block_size(size)) if fits else None


def _is_mxfp4(weight: Config, inputs: Config) -> bool:
    return (all(part.get(key) == value for part in (weight, inputs) for key, value in MX.items())
            and weight.get("is_dynamic") is not True and inputs.get("is_dynamic") is not False)


def _is_fp8(weight: Config, inputs: Config) -> bool:
    return (weight.get("dtype") == inputs.get("dtype") == FP8 and not weight.get("is_dynamic")
            and weight.get("qscheme") in ("per_tensor", "per_channel")
            and bool(inputs.get("is_dynamic") or inputs.get("qscheme") == "per_tensor"))


def _linear(config: Config, context: Context, site: Site) -> Assignment:
    weight, inputs = _parts(config, site)
    if _is_mxfp4(weight, inputs):
        return Assignment("QuarkLinearMethod", "QuarkW4A4MXFP4", "quark_mxfp4")
    least = context.table["traits"]["quark_fp8_capability"]["value"]
    if not _is_fp8(weight, inputs) or context.gpu.capability < least:
        raise refuse("layer assignment", "NotImplementedError", "No quark compatible scheme was "
                     f"found. Weight config: {_written(config, 'weight')}, Input config: "
                     f"{_written(config, 'input_tensors')}", site.path, SOURCE,
                     hint="SGLang serves Quark's FP8 on 8.9 and up.")
    channels = weight["qscheme"] == "per_channel"
    return Assignment("QuarkLinearMethod", "QuarkW8A8Fp8",
                      "fp8_channel" if channels else "fp8_tensor", {
                          "fp8.act": "per_token" if inputs.get("is_dynamic") else "static"})


def _written(config: Config, field: str) -> Any:
    """Return a part as the engine prints it: sorted keys have lost the order in which Quark writes
    them."""
    part = config.get(field)
    if not isinstance(part, dict) or [*part] != sorted(part) or not set(part) <= set(WRITTEN):
        return part
    return {key: part[key] for key in WRITTEN if key in part}


def _experts(config: Config, context: Context, site: Site) -> Assignment:
    weight, inputs = _parts(config, site)
    if _is_mxfp4(weight, inputs):
        _check_aiter(context, site)
        return Assignment("QuarkFusedMoEMethod", "QuarkW4A4MXFp4MoE", refusal=refuse(
            "weight loading", "NameError", "name 'e8m0_shuffle' is not defined", site.path,
            "layers/quantization/quark/schemes/quark_w4a4_mxfp4_moe.py:QuarkW4A4MXFp4MoE",
            hint="SGLang serves Quark's MXFP4 on AMD GPUs only."))
    if weight.get("dtype") == "fp4":
        raise NotKnownError("Quark's FP4 experts", hint="They are made for AMD GPUs.")
    if not _is_fp8(weight, inputs):
        raise refuse("layer assignment", "RuntimeError", "Unsupported FusedMoe scheme", site.path,
                     SOURCE, hint="Quantize experts to FP8, per tensor or per channel.")
    channels = weight["qscheme"] == "per_channel"
    act = "static" if not inputs.get("is_dynamic") else "per_token" if channels else "per_tensor"
    return Assignment("QuarkFusedMoEMethod", "QuarkW8A8FP8MoE", "experts_quark_fp8",
                      {"moe.act": act})


def _check_aiter(context: Context, site: Site) -> None:
    """Refuse MXFP4 experts without AITER, which auto means unless tokens are exchanged."""
    check_method(context, "QuarkFusedMoEMethod", site)
    backend, exchange = context.facts["moe.backend"], context.facts["moe.exchange"]
    if backend != "aiter" and (backend, exchange) != ("auto", NO_EXCHANGE):
        asked = "auto" if backend == "auto" else context.facts["moe.named"]
        raise refuse("kernel selection", "NotImplementedError", "Quark MXFP4 MoE currently "
                     f"requires the AITER runner; got {asked!r}.", site.path,
                     "layers/quantization/quark/schemes/quark_w4a4_mxfp4_moe.py:QuarkW4A4MXFp4MoE",
                     hint="Drop --moe-backend.")


def kv_method(fields: QuarkFields) -> str:
    """Return the method of attention layers: there always is one."""
    return "QuarkKVCacheMethod"
