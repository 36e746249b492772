"""A ModelOpt quantization config in its two forms: config.json's quantization_config, flat, and
hf_quant_config.json, with everything under "quantization"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import fill
from quantplan.dispatch.vllm.context import Table
from quantplan.dispatch.vllm.fields import Config, bad_config
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

SOURCE = "model_executor/layers/quantization/modelopt.py:ModelOptQuantConfigBase.from_config"


class Declared(NamedTuple):
    """What a ModelOpt config declares for the whole model, normalised."""

    algo: str
    kv_algo: str | None
    excluded: tuple[str, ...]
    group_size: int | None


def check_producer(config: Config, method: str, folder: str) -> None:
    """Refuse a hf_quant_config.json of another producer, when the class reads it as a file."""
    producer = config.get("producer", {})
    if not isinstance(producer, Mapping) or producer.get("name") != "modelopt":
        file = (f"<_io.TextIOWrapper name='{folder}/hf_quant_config.json' mode='r' "
                "encoding='UTF-8'>")
        raise bad_config(f"Unsupported quantization config found for {method} in {file}.",
                         "model_executor/model_loader/weight_utils.py:get_quant_config")


def kv_cache_dtype(table: Table, config: Config, method: str) -> str | None:
    """Return the --kv-cache-dtype that a ModelOpt checkpoint turns auto into, "auto" for one that
    the engine does not know, None when it names none
    (utils/torch_utils.py:get_kv_cache_quant_algo_string)."""
    if not method.startswith("modelopt"):
        return None
    inner = _inner(config, config.get("quantization", config))
    found = (inner.get("kv_cache_scheme") or config.get("kv_cache_scheme")
             or inner.get("kv_cache_quant_algo") or config.get("kv_cache_quant_algo"))
    if isinstance(found, Mapping):
        found = _scheme_algo(found)
    if not isinstance(found, str):
        return None
    return str(table["modelopt"]["kv_cache_dtypes"].get(found.lower(), "auto"))


def _inner(config: Config, inner: Any) -> Config:
    if not isinstance(inner, Mapping):
        raise CheckpointError("quantization config: quantization", wanted="an object",
                              found=repr(inner)[:60])
    return inner


def _scheme_algo(scheme: Mapping[str, Any]) -> str:
    bits, kind = scheme.get("num_bits"), scheme.get("type")
    if scheme.get("dynamic") is False and bits == 8 and kind == "float":
        return "fp8"
    return "nvfp4" if bits == 4 and kind == "float" else "unknown"


def declared(table: Table, config: Config) -> Declared:
    """Return what the config declares, or refuse as ModelOptQuantConfigBase.from_config does."""
    if "quantization" in config:
        inner = config["quantization"]
        if not isinstance(inner, Mapping):
            raise bad_config("Expected 'quantization' to be a dictionary in config", SOURCE)
        kv, excluded = inner.get("kv_cache_quant_algo"), inner.get("exclude_modules", [])
    else:
        fields = table["modelopt"]["flat_excluded"]
        inner, excluded = config, next((config[f] for f in fields if f in config), [])
        kv = "FP8" if _is_fp8(config.get("kv_cache_scheme")) else None
    algo = inner.get("quant_algo")
    if not algo:
        raise bad_config("Missing 'quant_algo' in quantization config", SOURCE)
    if kv is not None and not isinstance(kv, str):
        raise bad_config(f"kv_cache_quant_algo must be a string, got {type(kv)}", SOURCE)
    if not isinstance(excluded, list):
        raise bad_config(f"exclude_modules must be a list, got {type(excluded)}", SOURCE)
    group = _group_size(inner.get("group_size"))
    _check_algo(table, str(algo).upper())
    return Declared(str(algo).upper(), kv.upper() if kv else kv, _names(excluded), group)


def _is_fp8(scheme: Any) -> bool:
    return (isinstance(scheme, Mapping) and scheme.get("type") == "float"
            and scheme.get("num_bits") == 8)


def _group_size(raw: Any) -> int | None:
    if raw is None or isinstance(raw, int):
        return raw
    try:
        return int(raw)
    except (ValueError, TypeError):
        raise bad_config(f"group_size must be an integer, got {type(raw)}", SOURCE) from None


def _check_algo(table: Table, algo: str) -> None:
    rows = table["modelopt"]
    known = [*(row["id"] for row in rows["algos"]), rows["mixed_algo"]]
    if algo not in known:
        raise bad_config(f"ModelOpt currently only supports: {known} quantizations in vLLM. Please "
                         "check the `hf_quant_config.json` file for your model's quant "
                         "configuration.", SOURCE, "Export the checkpoint with one of them; "
                         "another algorithm needs an engine that reads it (TensorRT-LLM).")


def _names(excluded: list[Any]) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in excluded):
        raise CheckpointError("quantization config: ignored modules", wanted="a list of names",
                              found=repr(excluded)[:60])
    return tuple(excluded)


def check_owned(table: Table, config_class: str, algo: str, config: Config) -> None:
    """Refuse an algorithm that `config_class` does not serve, or a file that lacks its fields."""
    rows = table["modelopt"]
    row = next(row for row in rows["classes"] if row["id"] == config_class)
    owned = [a["id"] for a in rows["algos"] if a["config_class"] == config_class]
    source = f"model_executor/layers/quantization/modelopt.py:{config_class}"
    if algo not in owned:
        words = {"algo": algo, "supported": " / ".join(owned)}
        raise bad_config(fill(row["unsupported"], words), source)
    inner = config.get("quantization", {})
    absent = [field for field in row.get("required", ()) if field not in inner]
    if "quantization" in config and absent:
        raise bad_config(fill(row["missing"], {"fields": absent}), source)
