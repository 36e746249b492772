"""GGUF: every linear layer and embedding has its method, whose kernels go by the type that each
tensor is stored in (layers/quantization/gguf.py)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.sglang.fields import Config


def read(config: Config | None, context: Context) -> None:
    """Return nothing: the loader gives the class an empty config (get_quant_config)."""
    return


def assign(fields: None, context: Context, site: Site) -> Assignment:
    """Return the assignment of a linear layer or an embedding."""
    return Assignment("GGUFEmbeddingMethod" if site.module.split == "vocab" else
                      "GGUFLinearMethod")


def experts(fields: None, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts, whose kernels go by the stored type too."""
    return Assignment("GGUFMoEMethod")
