"""Methods that quantize routed experts and leave linear layers in 16 bits: experts_int8, mxfp4 and
gpt_oss_mxfp4 (model_executor/layers/quantization/experts_int8.py, mxfp4.py)."""

from __future__ import annotations

from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.fields import Config


def check(config: Config) -> Config:
    """Return the config: the classes read none of its fields."""
    return config


def read(config: Config, context: Context) -> None:
    """Return nothing: from_config reads nothing."""


def default(context: Context) -> None:
    """Return nothing: the classes need no config."""


def assign(fields: None, context: Context, site: Site) -> Assignment | None:
    """Return the 16-bit method of linear layers; None for embeddings and lm_head."""
    if site.module.split == "vocab":
        return None
    return Assignment("UnquantizedLinearMethod", why="this method quantizes routed experts only")
