"""The model's dtype and that of its KV cache."""

from __future__ import annotations

from collections.abc import Mapping

from quantplan.dispatch.facts import Checkpoint, Gpu
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError, UsageError

NAMES: Mapping[str, str] = {
    "float16": "float16", "half": "float16", "bfloat16": "bfloat16", "float32": "float32",
    "float": "float32"}
"""configs/model_config.py:_STR_DTYPE_TO_TORCH_DTYPE."""


def model_dtype(checkpoint: Checkpoint, requested: str) -> str:
    """Return the dtype before the GPU is asked: the text config's, else the whole's
    (utils/hf_transformers/common.py:get_hf_text_config), float16 for models of float32 and of none,
    bfloat16 for Gemma (configs/model_config.py:_get_and_verify_dtype)."""
    config, whole = checkpoint.text_config, checkpoint.config
    named = next((part[key] for part in (config, whole) for key in ("dtype", "torch_dtype")
                  if part.get(key)), "float32")
    own = NAMES.get(str(named).replace("torch.", ""))
    if own is None:
        raise CheckpointError("config.json: torch_dtype", wanted=", ".join(NAMES),
                              found=repr(named)[:60])
    if requested == "auto":
        gemma = str(config.get("model_type", "")).startswith("gemma")
        return own if own != "float32" else "bfloat16" if gemma else "float16"
    if requested.lower() not in NAMES:
        raise UsageError(f"--dtype {requested}", wanted="auto, " + ", ".join(NAMES))
    return NAMES[requested.lower()]


def device_dtype(table: Table, gpu: Gpu, dtype: str) -> str:
    """Return the dtype that the GPU runs: old ones run float16, older ones are refused."""
    row = table["old_gpus"]
    if gpu.capability < row["refused_below"]:
        raise refuse("activation dtype", row["type"], row["message"], None, row["source"],
                     hint="Serve it with vLLM, or on a GPU of capability 7.5 or above.")
    return "float16" if gpu.capability < row["float16_below"] else dtype


def kv_dtype(table: Table, requested: str, dtype: str, algo: str | None) -> str:
    """Return the dtype of the KV cache: auto is the model's, or FP8 where the checkpoint says so.
    """
    if requested == "auto":
        return str(table["kv_dtypes"]["fp8_e4m3"]) if str(algo).upper() == "FP8" else dtype
    return str(table["kv_dtypes"][requested])
