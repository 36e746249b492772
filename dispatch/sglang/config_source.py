"""Where the config of a method's class comes from: config.json, else a file beside it
(model_loader/weight_utils.py:get_quant_config)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.sglang.fields import Config
from quantplan.dispatch.sglang.names import NamedMethod
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

Row = Mapping[str, Any]
SOURCE = "model_loader/weight_utils.py:get_quant_config"
MODELOPT, MODELSLIM = "modelopt", "modelslim"


def class_config(row: Row, named: NamedMethod, checkpoint: Checkpoint) -> Config | None:
    """Return what the method's class reads, None where it is made without a config; refuses where
    it wants one. A method that reads files takes the one beside config.json, whatever says it."""
    config, key = checkpoint.config, "quantization_config"
    said = (config.get(key), checkpoint.text_config.get(key), config.get("compression_config"))
    spec = next((spec for spec in said if spec is not None), None)
    if spec is not None:
        return spec if named.checkpoint == MODELSLIM else named.config
    if "config_files" not in row:
        if named.config is None:
            check_without_config(row)
        return None
    found = [name for name in checkpoint.side_files
             if any(name.endswith(end) for end in row["config_files"])]
    if len(found) > 1:
        raise NotKnownError(f"which of {' and '.join(found)} SGLang's {row['id']} reads",
                            hint="It refuses more than one.")
    if not found:
        check_without_config(row)
        return None
    beside = checkpoint.side_files[found[0]]
    _check_modelopt(row, beside, checkpoint)
    return beside


def check_without_config(row: Row) -> None:
    """Refuse a method that a checkpoint without a quantization config does not start with."""
    if "config_files" in row and not row.get("online"):
        raise refuse("config fields", "ValueError", f"Cannot find the config file for {row['id']}",
                     None, SOURCE, hint="The checkpoint is not quantized: drop --quantization, or "
                     "pass --quantization fp8 to quantize while loading.")
    if "without_config" in row:
        said = row["without_config"]
        raise refuse("config fields", said["type"], said["message"], None, SOURCE,
                     hint="The checkpoint is not quantized: drop --quantization.")


def _check_modelopt(row: Row, config: Config, checkpoint: Checkpoint) -> None:
    """Refuse ModelOpt's own file where it names no algorithm."""
    inner = config.get("quantization", config)
    producer = str((config.get("producer") or {}).get("name", ""))
    if (row["id"].startswith(MODELOPT) and producer.startswith(MODELOPT)
            and isinstance(inner, Mapping) and inner.get("quant_algo") is None):
        name = checkpoint.config["architectures"][0]
        raise refuse("config fields", "ValueError", "Invalid quant_config, quantization method: "
                     f"{row['id']},hf architectures: {name}. ", None, SOURCE,
                     hint="hf_quant_config.json: name the algorithm as quant_algo.")
