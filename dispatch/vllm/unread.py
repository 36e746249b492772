"""A quantization config that the engine does not take for one: the model is served unquantized."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.headers import assumed_plain, quantized_modules
from quantplan.dispatch.vllm.quant_config import quantization_config

SOURCE = "transformers_utils/config.py:get_safetensors_params_metadata"


def unread_quantization(context: Context, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """A config without quant_method, and without the producer that stands for one."""
    config, place = quantization_config(context.checkpoint)
    if not layers or not config or config.get("quant_method"):
        return
    unquantized = all((x.method or "Unquantized").startswith("Unquantized")
                      or not x.weighted for x in layers)
    stored = context.checkpoint.tensors is None or quantized_modules(context.checkpoint)
    if unquantized and stored and context.deployment.quantization is None:
        yield Finding(
            "method name", "error", "quantization-config-unread",
            f"{place} names no quant_method, and no producer modelopt with a quantization section "
            "that stands for one: every layer is built in 16 bits, and loading stops at the first "
            "scale of the checkpoint (There is no module or parameter named ...)",
            'Give it a "quant_method" ("modelopt" for a ModelOpt file).',
            "transformers_utils/model_arch_config_convertor.py:ModelArchConfigConvertorBase."
            "_normalize_quantization_config")


def assumed_routers(context: Context, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """Routers that are taken as 16-bit because no header could be read."""
    plain = assumed_plain(context.checkpoint, context.structure)
    method = context.checkpoint.config.get("quantization_config") or {}
    if layers and plain and method.get("quant_method") in ("awq", "gptq"):
        yield Finding(
            "layer assignment", "info", "routers-assumed-16-bit",
            f"no safetensors header was read: {plain[0]} and the other routers are taken as stored "
            "in 16 bits, as AutoAWQ and GPTQModel write them",
            "Give the folder or the hub id instead of a config.", SOURCE)


def unread_exclusions(context: Context, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """A list of modules to leave in 16 bits under a field that this version does not read there."""
    config, place = quantization_config(context.checkpoint)
    rows = context.table["modelopt"]
    quantized = any(x.method == "ModelOptLinearMethod" for x in layers)
    if not quantized or not config or "quantization" in config:
        return
    fields = ("ignore", "exclude_modules", "modules_to_not_convert")
    unread = [f for f in fields if config.get(f) and f not in rows["flat_excluded"]]
    if unread and not any(config.get(f) for f in rows["flat_excluded"]):
        yield Finding("layer assignment", "warning", "excluded-modules-unread",
                      f"{place} names modules to leave in 16 bits under {unread[0]}, which this "
                      "version reads in hf_quant_config.json only: all of them are quantized",
                      f"Name them under {rows['flat_excluded'][0]}.", rows["flat_excluded_source"])
