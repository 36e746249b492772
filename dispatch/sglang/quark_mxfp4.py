"""MXFP4 that Quark's class makes while loading: AMD GPUs only
(layers/quantization/quark/quark.py:QuarkConfig)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.fields import Config
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SOURCE = "layers/quantization/quark/quark.py:QuarkConfig"


def read(config: Config | None, context: Context) -> None:
    """Return nothing. Raises NotKnownError for checkpoints but those of FP8."""
    if config is not None and config.get("quant_method") != "fp8":
        raise NotKnownError("--quantization quark_mxfp4 over a checkpoint that is not FP8",
                            hint="Drop --quantization quark_mxfp4: it needs an AMD GPU.")


def assign(fields: None, context: Context, site: Site) -> Assignment | None:
    """Return nothing for embeddings; refuse the first linear layer."""
    if site.module.split == "vocab":
        return None
    raise refuse("layer assignment", "NotImplementedError", "Online MXFP4 quantization requires an "
                 "AMD ROCm device with FP4 hardware support (gfx95x, e.g. MI355x).", site.path,
                 SOURCE, hint="Choose another --quantization on an NVIDIA GPU.")
