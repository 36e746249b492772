"""The activation dtype: --dtype, or the checkpoint's own where the GPU can compute in it
(config/model.py:_get_and_verify_dtype, _resolve_auto_dtype)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Gpu
from quantplan.tables.errors import CheckpointError, UsageError

NAMES = {"half": "float16", "float16": "float16", "float": "float32", "float32": "float32",
         "bfloat16": "bfloat16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""config/model.py:_STR_DTYPE_TO_TORCH_DTYPE, plus the usual short forms."""


def resolve_dtype(config: Mapping[str, Any], gpu: Gpu, requested: str) -> str:
    """Return float16, bfloat16 or float32. auto: the config's dtype; float32 models are computed
    in 16 bits; bfloat16 below 8.0 becomes float16."""
    if requested != "auto":
        if requested not in NAMES:
            raise UsageError(f"--dtype {requested}", wanted="auto, " + ", ".join(NAMES))
        return NAMES[requested]
    own = str(config.get("dtype") or config.get("torch_dtype") or "float32").replace("torch.", "")
    if own not in NAMES:
        raise CheckpointError("config.json: torch_dtype",
                              wanted="one of bfloat16, float16, float32", found=own[:60])
    own = NAMES[own]
    preferred = "bfloat16" if gpu.capability >= 80 else "float16"
    return preferred if own == "float32" or (own == "bfloat16" and gpu.capability < 80) else own
