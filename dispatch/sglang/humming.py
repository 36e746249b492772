"""humming without a checkpoint's config: every layer stays in 16 bits
(layers/quantization/humming.py:HummingConfig)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config
from quantplan.tables.errors import NotKnownError


def read(config: Config | None, context: Context) -> None:
    """Return nothing. Raises NotKnownError for what humming quantizes."""
    if config is not None or context.facts["env.SGLANG_HUMMING_ONLINE_QUANT_CONFIG"]:
        raise NotKnownError("the schemas of SGLang's humming",
                            hint="Drop --quantization humming.")


def assign(fields: None, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer."""
    return None if site.module.split == "vocab" else unquantized("no config says what it is to be")


def experts(fields: None, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of routed experts."""
    return unquantized_experts("no config says what they are to be", "nothing")
