"""The activation dtype: --dtype, or the checkpoint's own where the GPU can compute in it
(config/model.py:_get_and_verify_dtype, _resolve_auto_dtype)."""

from __future__ import annotations

from collections.abc import Mapping

from quantplan.dispatch.facts import Checkpoint, Gpu
from quantplan.dispatch.trace import EngineError, refuse
from quantplan.dispatch.vllm.context import Table
from quantplan.tables.errors import CheckpointError, NotKnownError, UsageError
from quantplan.tables.near_names import did_you_mean, near_names

NAMES = {"half": "float16", "float16": "float16", "float": "float32", "float32": "float32",
         "bfloat16": "bfloat16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""config/model.py:_STR_DTYPE_TO_TORCH_DTYPE, plus the usual short forms."""

BFLOAT16_MIN = 80
"""platforms/cuda.py:CudaPlatformBase.supported_dtypes."""

OTHER = ("float8_e4m3fn", "float8_e5m2", "float64", "double", "int8", "uint8", "int16", "int32",
         "int64")
"""torch dtypes that no GPU computes a model in: as for float32, the engine falls back."""


def resolve_dtype(table: Table, checkpoint: Checkpoint, gpu: Gpu, requested: str) -> str:
    """Return float16, bfloat16 or float32. auto: the config's dtype, else the headers'; float32
    models are computed in 16 bits; bfloat16 below 8.0 becomes float16. Refuses float16 for the
    model types that it does not serve."""
    refused = _float16_refused(table, checkpoint)
    if requested == "auto":
        return _auto(own_dtype(checkpoint), gpu, float16=refused is None)
    if requested not in NAMES:
        raise UsageError(f"--dtype {requested}", wanted="auto, " + ", ".join(NAMES),
                         hint=did_you_mean(near_names(requested, NAMES)))
    if NAMES[requested] == "float16" and refused is not None:
        raise refuse("activation dtype", "ValidationError",
                     f"The model type {checkpoint.config['model_type']!r} does not support "
                     f"float16. Reason: {refused}",
                     None, table["float16_refused_source"],
                     hint=f"Pass --dtype {_auto('bfloat16', gpu, float16=False)}.")
    return NAMES[requested]


def _float16_refused(table: Table, checkpoint: Checkpoint) -> str | None:
    """Return why the engine serves this model type not in float16, None where it does."""
    reason: str | None = table["float16_refused"].get(str(checkpoint.config.get("model_type")))
    return reason


def _auto(own: str, gpu: Gpu, float16: bool) -> str:
    """Return `own` where the GPU and the model allow it, else the first dtype that they allow."""
    allowed = [*(("bfloat16",) if gpu.capability >= BFLOAT16_MIN else ()),
               *(("float16",) if float16 else ()), "float32"]
    wanted = allowed[0] if own == "float32" else own
    return wanted if wanted in allowed else allowed[0]


def dtype_refused(
    table: Table, checkpoint: Checkpoint, gpu: Gpu, dtype: str
) -> EngineError | None:
    """Return the worker's refusal of bfloat16 below 8.0: it comes from a process of its own, after
    everything that the configuration and the model's own construction refuse."""
    if dtype != "bfloat16" or gpu.capability >= BFLOAT16_MIN:
        return None
    return EngineError(
        "activation dtype", "ValueError",
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
        f"{gpu.name} GPU has compute capability {gpu.capability_text}. You can use float16 "
        "instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
        source="platforms/cuda.py:CudaPlatformBase.check_if_supports_dtype",
        hint=f"Pass --dtype {_auto(dtype, gpu, _float16_refused(table, checkpoint) is None)}.")


PARTS = ("vision_config", "encoder_config")
"""Where the dtype is looked for after the config itself and its text part."""


def own_dtype(checkpoint: Checkpoint) -> str:
    """Return the dtype that the config gives, else the first of its parts that gives one, else the
    one that its tensors can all be cast to without loss
    (transformers_utils/model_arch_config_convertor.py:
    ModelArchConfigConvertorBase.get_torch_dtype)."""
    config = checkpoint.config
    parts = (config, checkpoint.text_config, *(config.get(name) for name in PARTS))
    given = (part.get("dtype") or part.get("torch_dtype") for part in parts
             if isinstance(part, Mapping))
    own = next((found for found in given if found is not None), None)
    if own is None:
        return _stored_dtype(checkpoint)
    name = str(own).replace("torch.", "")
    if name not in NAMES and name not in OTHER:
        raise CheckpointError("config.json: torch_dtype", wanted="a torch dtype",
                              found=repr(name)[:60])
    return NAMES.get(name, "float32")


def _stored_dtype(checkpoint: Checkpoint) -> str:
    stored = {tensor.dtype for tensor in (checkpoint.tensors or {}).values()}
    if "F32" in stored or not stored & {"F16", "BF16"}:
        return "float32"
    if {"F16", "BF16"} <= stored:
        raise NotKnownError("the dtype of a config without torch_dtype, from tensors of "
                            + ", ".join(sorted(stored)), hint="Pass --dtype.")
    return "float16" if "F16" in stored else "bfloat16"
