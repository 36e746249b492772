"""Where a checkpoint keeps its quantization config, and the quant_method that the engine reads from
it (transformers_utils/model_arch_config_convertor.py, transformers_utils/config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Table
from quantplan.tables.errors import CheckpointError

Config = Mapping[str, Any]


def quantization_config(checkpoint: Checkpoint) -> tuple[Config | None, str]:
    """Return the quantization config that names the method, and where it was found.

    Order: quantization_config or hf_quant_config.json, compression_config, then the same in
    text_config. Raises CheckpointError when one is not an object.
    """
    return _first(checkpoint, "quantization_config", "hf_quant_config.json", "compression_config",
                  "text_config.quantization_config", "text_config.compression_config")


def served_config(checkpoint: Checkpoint) -> tuple[Config | None, str]:
    """Return the config that the config class reads: another order than that of the name, and not
    text_config.compression_config (model_loader/weight_utils.py:get_quant_config)."""
    return _first(checkpoint, "quantization_config", "hf_quant_config.json",
                  "text_config.quantization_config", "compression_config")


def _first(checkpoint: Checkpoint, *places: str) -> tuple[Config | None, str]:
    for place in places:
        found = _at(checkpoint, place)
        if found is not None:
            if not isinstance(found, Mapping):
                raise CheckpointError(f"config.json: {place}", wanted="an object",
                                      found=repr(found)[:60])
            return found, place
    return None, "nowhere"


def _at(checkpoint: Checkpoint, place: str) -> Any:
    if place.endswith(".json"):
        return checkpoint.side_files.get(place)
    part, _, name = place.rpartition(".")
    return (checkpoint.text_config if part else checkpoint.config).get(name)


def method_of(table: Table, checkpoint: Checkpoint, config: Config, place: str) -> str | None:
    """Return the quant_method of a config as the engine normalises it, or None for none.

    Refuses an unknown ModelOpt algorithm; raises CheckpointError for a quant_method that is no
    text.
    """
    method = config.get("quant_method", "")
    if place in PRODUCER_PLACES:
        method = producer_method(table, config) or method
    if not isinstance(method, str):
        raise CheckpointError(f"{place}: quant_method", wanted="text", found=repr(method)[:60])
    name = method.lower().replace("compressed_tensors", "compressed-tensors")
    return rewritten(table, checkpoint, config, name) or None


PRODUCER_PLACES = ("quantization_config", "hf_quant_config.json", "text_config.quantization_config")
"""Where a producer's name counts: not in a compression_config."""


def producer_method(table: Table, config: Config) -> str | None:
    """Return the method that a ModelOpt export stands for, whatever its quant_method says; None
    for other configs. Refuses an unknown algorithm."""
    known = table["producers"]
    producer, inner = config.get("producer"), config.get("quantization")
    named = isinstance(producer, Mapping) and producer.get("name") == known["name"]
    if not isinstance(inner, Mapping) or not (named or known["legacy"] in inner):
        return None
    algo = inner.get("quant_algo")
    if algo is None:
        return None
    if str(algo).upper() not in known["algos"]:
        raise refuse("method name", "ValidationError",
                     known["unknown"].replace("{algo}", str(algo)), None, known["source"],
                     hint="Put this content into config.json as quantization_config with "
                     "quant_method modelopt, where this version reads more of them.")
    return str(known["algos"][str(algo).upper()])


def rewritten(
    table: Table, checkpoint: Checkpoint, config: Config, name: str, late: bool = False
) -> str:
    """Return what the model's class makes of the name: before the hooks are asked, or `late`."""
    classes, own = checkpoint.config.get("architectures"), checkpoint.config.get("model_type")
    for row in table["rewrites"]:
        ours = isinstance(classes, list) and any(c in row["architectures"] for c in classes[:1])
        if (ours and name == row["checkpoint"] and bool(row.get("late")) == late
                and own in row.get("model_types", (own,))
                and row.get("format") in (None, config.get("format"))):
            return str(row["becomes"])
    return name
