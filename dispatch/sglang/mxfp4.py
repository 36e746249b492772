"""MXFP4, which serves routed experts only: dense layers end the start
(layers/quantization/mxfp4.py:Mxfp4Config)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.fields import Config
from quantplan.dispatch.trace import refuse

SOURCE = "layers/quantization/mxfp4.py:Mxfp4Config.get_quant_method"
HINT = "SGLang serves MXFP4 for the experts of gpt-oss; choose another method."


def read(config: Config | None, context: Context) -> bool:
    """Return whether the checkpoint is stored so."""
    return config is not None


def assign(fields: bool, context: Context, site: Site) -> Assignment | None:
    """Return nothing for embeddings of a checkpoint that is not stored so, else refuse."""
    if site.module.split == "vocab":
        if fields:
            raise refuse("layer assignment", "NotImplementedError",
                         "Mxfp4 attention layer is not implemented", site.path, SOURCE, HINT)
        return None
    raise refuse("layer assignment", "AssertionError", "", site.path, SOURCE, HINT)
