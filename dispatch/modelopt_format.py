"""How a ModelOpt checkpoint stores its weights, in both forms of its config."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from quantplan.dispatch.weight_format import (
    STATIC,
    Config,
    WeightFormat,
    names_of,
    not_known,
)

LAYOUTS = {
    "FP8": WeightFormat("modelopt-fp8", 8, features=frozenset([STATIC])),
    "FP8_PER_CHANNEL_PER_TOKEN": WeightFormat("modelopt-fp8-channel", 8),
    "FP8_PB_WO": WeightFormat("modelopt-fp8-block", 8, block=(128, 128)),
    "NVFP4": WeightFormat("modelopt-nvfp4", 4, 16, features=frozenset([STATIC])),
    "W4A16_NVFP4": WeightFormat("modelopt-nvfp4", 4, 16),
    "MXFP8": WeightFormat("modelopt-mxfp8", 8, 32),
}
"""quant_algo -> what its create_weights allocates (vllm model_executor/layers/quantization/
modelopt.py:LINEAR_ALGOS)."""


def modelopt_format(section: Config) -> WeightFormat:
    """Return the format of a ModelOpt config; raise NotKnownError for an algorithm without a
    layout, or one per layer."""
    inner = section.get("quantization", section)
    inner = inner if isinstance(inner, Mapping) else {}
    algo = str(inner.get("quant_algo", "")).upper()
    if algo not in LAYOUTS:
        raise not_known(f"quant_algo {algo or 'absent'}", ", ".join(LAYOUTS))
    ignored = names_of(inner, "exclude_modules", "ignore")
    found = LAYOUTS[algo]
    if algo == "NVFP4" and _weights_only(section):
        found = LAYOUTS["W4A16_NVFP4"]
    head = not any(name in "lm_head" or fnmatchcase("lm_head", name) for name in ignored)
    return found._replace(ignored=tuple(n for n in ignored if n != "lm_head"), lm_head=head)


def _weights_only(section: Config) -> bool:
    groups = section.get("config_groups")
    return isinstance(groups, Mapping) and bool(groups) and all(
        isinstance(group, Mapping) and group.get("input_activations") is None
        for group in groups.values())
