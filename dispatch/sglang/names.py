"""What the quantization method is called in the end: the checkpoint's config, the overrides, the
user's word (configs/model_config.py:ModelConfig._verify_quantization)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.fields import is_fp8_scheme
from quantplan.dispatch.trace import Step, refuse
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

Config = Mapping[str, Any]
DESCRIPTION = "quant_model_description.json"
UNQUANT = "unquant"
"""--quantization unquant: the first word that ServerArgs resolves, to no method at all."""


class NamedMethod(NamedTuple):
    """The checkpoint's own name, the resolved one, its config and the steps in between."""

    checkpoint: str | None
    resolved: str | None
    config: Config | None
    steps: tuple[Step, ...]


def name_method(
    table: Table, checkpoint: Checkpoint, requested: str | None, capability: int
) -> NamedMethod:
    """Return the method's final name, or refuse as the engine does. The config that its class
    reads may be the text config's, which has no say in the name
    (model_loader/checkpoint_quantization.py:resolve_checkpoint_quant_spec)."""
    asked = None if requested in (None, UNQUANT) else str(requested).lower()
    config = quantization_config(table, checkpoint)
    own, resolved, steps = None, asked, _UNCHANGED
    if config is not None:
        own = _own_name(table, config, asked)
        resolved, steps = _resolved(table, config, own, asked, capability)
    if resolved is not None and resolved not in table["methods"]:
        names = list(table["methods"])
        raise refuse("method name", "ValueError", f"Unknown quantization method: {resolved}. Must "
                     f"be one of {names}.", None, table["names_source"], hint=_way_out(own))
    if config is None and resolved is not None:
        config = _mapping(checkpoint.text_config.get("quantization_config"),
                          "text_config.quantization_config")
    return NamedMethod(own, resolved, config, steps)


def _own_name(table: Table, config: Config, asked: str | None) -> str:
    """Return the checkpoint's own name of the method; refuses what is no text."""
    own = config.get("quant_method", asked or "")
    if isinstance(own, str):
        return own.lower()
    raise refuse("method name", "AttributeError",
                 f"{type(own).__name__!r} object has no attribute 'lower'", None,
                 table["names_source"], hint="quantization_config: quant_method is a text.")


def quantization_config(table: Table, checkpoint: Checkpoint) -> Config | None:
    """Return the checkpoint's quantization config as the engine parses it, None where it has none:
    ModelSlim's description, else quantization_config, else compression_config, else
    hf_quant_config.json."""
    if DESCRIPTION in checkpoint.side_files:
        return {**checkpoint.side_files[DESCRIPTION], "quant_method": "modelslim"}
    config = own_config(table, checkpoint)
    if config is not None:
        return config
    config = _mapping(checkpoint.config.get("compression_config"), "compression_config")
    side = checkpoint.side_files.get("hf_quant_config.json")
    return config if config is not None or side is None else modelopt_method(table, side)


def own_config(table: Table, checkpoint: Checkpoint) -> Config | None:
    """Return config.json's quantization_config, None without one. What a ModelOpt config's
    algorithm means is written into it, so that a nested one counts as flat from then on."""
    config = _mapping(checkpoint.config.get("quantization_config"), "quantization_config")
    if config is None or config.get("quant_method", "modelopt") != "modelopt":
        return config
    return {**config, **(modelopt_method(table, {"quantization": config}) or {})}


def modelopt_method(table: Table, config: Config) -> dict[str, Any] | None:
    """Return the method that a ModelOpt config's quant_algo means, None where it means none."""
    inner = config.get("quantization", config)
    nested = inner.get("quantization") if isinstance(inner, Mapping) else None
    inner = nested if isinstance(nested, Mapping) else inner
    algo = inner.get("quant_algo") if isinstance(inner, Mapping) else None
    if algo and not isinstance(algo, str):
        raise CheckpointError("quantization config: quant_algo", wanted="a text",
                              found=repr(algo)[:60])
    if algo == "MIXED_PRECISION":
        return {"quant_method": _mixed(inner), "quant_algo": algo}
    fits = (row["method"] for row in table["modelopt_algos"]
            if algo and (row.get("equals") == algo or row.get("holds", "\0") in algo))
    method = next(fits, None)
    if method is None:
        return None
    return {"quant_method": method, "quant_algo": algo,
            **(_mxfp8_fields(inner) if method == "mxfp8" else {})}


def _mxfp8_fields(inner: Config) -> dict[str, Any]:
    """Return what the class of MXFP8 reads, from the keys that ModelOpt has for it."""
    fields: dict[str, Any] = {"activation_scheme": "dynamic", "scale_fmt": "ue8m0"}
    ignored = inner.get("exclude_modules", inner.get("ignore"))
    scheme, kv_algo = inner.get("kv_cache_scheme"), inner.get("kv_cache_quant_algo")
    if kv_algo is None and isinstance(scheme, Mapping) and is_fp8_scheme(scheme):
        kv_algo = "FP8"
    return {**fields, **({} if ignored is None else {"modules_to_not_convert": ignored}),
            **({} if kv_algo is None else {"kv_cache_quant_algo": kv_algo})}


def _mixed(inner: Config) -> str:
    layers = inner.get("quantized_layers") or {}
    algos = (str(row.get("quant_algo", "")).upper() for row in layers.values()
             if isinstance(row, Mapping))
    return "modelopt_mixed" if any(a in ("NVFP4", "W4A16_NVFP4") for a in algos) else "w4afp8"


def _resolved(
    table: Table, config: Config, own: str, asked: str | None, capability: int
) -> tuple[str, tuple[Step, ...]]:
    here = table.get("platform", EVERYWHERE)
    if asked not in table["requantizes"]:
        for hook in HOOKS:
            answer = hook(table, config, asked, capability)
            if answer and answer not in here.get("lost_overrides", ()):
                return answer, (Step("Overridden", f"{asked or own} -> {answer}",
                                     HOOKS[hook], table["names_source"]),)
    if asked is None or asked == own or asked in table["requantizes"] or (
            own in table["compatible"].get(asked, ())):
        return asked or own, ()
    raise refuse("method name", "ValueError",
                 f"Quantization method specified in the model config ({own}) does not match the "
                 "quantization method specified in the `quantization` argument "
                 f"({asked}).", None, table["names_source"],
                 hint="Drop --quantization: the checkpoint's own method is used.")


def _modelopt(table: Table, config: Config, asked: str | None, capability: int) -> str | None:
    algo = config.get("quant_algo", "")
    if asked == "nvfp4_online":
        return None
    if not isinstance(algo, str):
        raise refuse("method name", "AttributeError",
                     f"{type(algo).__name__!r} object has no attribute 'upper'", None,
                     "layers/quantization/base_config.py:QuantizationConfig."
                     "_modelopt_override_quantization_method",
                     hint="quantization_config: quant_algo is a text.")
    named = config.get("quant_method", "")
    if asked == "modelopt" and (method := modelopt_method(table, config)):
        return str(method["quant_method"])
    return str(named) if named in ("modelopt_fp8", "modelopt_fp4", "modelopt_mixed") else None


def _awq_marlin(table: Table, config: Config, asked: str | None, capability: int) -> str | None:
    bits, zero_point = config.get("bits"), config.get("zero_point")
    fits = (config.get("quant_method", "").lower() == "awq" and bits == 4 and zero_point is True
            and marlin_serves(table, config.get("group_size"), capability))
    return "awq_marlin" if fits and asked in (None, "marlin", "awq_marlin") else None


def _gptq_marlin(table: Table, config: Config, asked: str | None, capability: int) -> str | None:
    own = config.get("quant_method", "").lower()
    marlin_format = config.get("checkpoint_format") == "marlin" or config.get("is_marlin_format")
    fits = (own == "gptq" and not marlin_format and config.get("bits") in (4, 8)
            and config.get("sym") is True and config.get("desc_act") is not None
            and marlin_serves(table, config.get("group_size"), capability))
    return "gptq_marlin" if fits and asked in (None, "marlin", "gptq_marlin") else None


def _of_platform(table: Table, config: Config, asked: str | None, capability: int) -> str | None:
    """Some names are answered, or raise, on one platform only (tables: platforms)."""
    here, own = table.get("platform", EVERYWHERE), config.get("quant_method", "").lower()
    if asked in here.get("raising_overrides", ()):
        said = here["raising_overrides"][asked]
        raise refuse("method name", said["type"], said["message"], None, said["source"],
                     hint="Drop --quantization.")
    names = here.get("own_overrides", {})
    return next((str(name) for name in names if names[name] == own), None)


def _only_asked(table: Table, config: Config, asked: str | None, capability: int) -> str | None:
    """moe_wna16 takes GPTQ and AWQ checkpoints that it serves; humming any that it reads."""
    own, bits = config.get("quant_method", "").lower(), config.get("bits")
    gptq = own == "gptq" and not config.get("desc_act") and bits in (4, 8)
    awq = own == "awq" and bits == 4 and capability >= table["methods"]["awq"]["min_capability"]
    if asked == "moe_wna16":
        return asked if gptq or awq else None
    return asked if asked == "humming" and own != "mxfp4" else None


EVERYWHERE: Mapping[str, Any] = {}
"""The row of the platform on CUDA: no override is lost or added there."""


def marlin_serves(table: Table, group_size: Any, capability: int) -> bool:
    """Return whether Marlin serves 4-bit weights in groups of this size on this GPU."""
    row = table["marlin"]
    return capability >= row["min_capability"] and group_size in row["group_sizes"]


def _mapping(value: Any, field: str) -> Config | None:
    if value is None or isinstance(value, Mapping):
        return value
    raise CheckpointError(f"config.json: {field}", wanted="an object", found=repr(value)[:60])


def _way_out(own: str | None) -> str:
    if own == "gptq":
        return ("SGLang serves GPTQ through Marlin only: 4 or 8 bits, sym true, groups of 32, 64, "
                "128 or -1, on 8.0 and up.")
    return "Serve a checkpoint of one of these methods."


_UNCHANGED: tuple[Step, ...] = ()
Hook = Callable[[Table, Config, "str | None", int], "str | None"]
HOOKS: Mapping[Hook, str] = {
    _modelopt: "the checkpoint's ModelOpt algorithm says which method it is",
    _awq_marlin: "the checkpoint can be converted to Marlin's format while it loads",
    _gptq_marlin: "the checkpoint can be converted to Marlin's format while it loads",
    _of_platform: "the platform's own method takes the checkpoint",
    _only_asked: "the method takes this checkpoint where it is asked to",
}
"""The override hooks in registry order, each with its reason."""
