"""Configs whose layers differ in size: Transformers lets nobody read such a size from the whole
config, and SGLang does (utils/hf_transformers/config.py:get_config)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.trace import refuse

LAYERED = "gemma4_text"
"""The model type whose full layers have sizes of their own; SGLang makes one config of them for the
types around it only (utils/hf_transformers/config.py:_GEMMA4_MODEL_TYPES)."""
FULL = "full_attention"
GLOBAL_HEAD_DIM, HEAD_DIM, KV_HEADS = 512, 256, 4
"""What a config without these has:
transformers 5.19.0 models/gemma4/configuration_gemma4.py:Gemma4TextConfig."""


def check_layered(checkpoint: Checkpoint) -> None:
    """Refuse a config of a text model alone whose layers differ in key and value heads or in the
    size of a head."""
    config = checkpoint.config
    if config.get("model_type") != LAYERED or FULL not in config.get("layer_types", (FULL,)):
        return
    name = next(_differing(config), None)
    if name is None:
        return
    raise refuse(
        "config fields", "AmbiguousGlobalPerLayerAttributeError",
        f"'{name}' is a per-layer attribute and may vary across layers. Access it via the "
        f"individual layer configs instead (e.g. config.per_layer_config[i].{name}). To read the "
        f"global config value from config.{name} anyway, set "
        "`allow_global_per_layer_attribute_access` to `True` on the config. Warning: only do this "
        "if the caller can safely handle heterogeneous configs; code that assumes a homogeneous "
        "model may use the global value incorrectly.", None,
        "utils/hf_transformers/config.py:get_config",
        hint="Serve the checkpoint with its wrapper's config.json (model_type gemma4).")


def _differing(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sizes of full layers that are not those of the others, as they are read."""
    heads = config.get("num_global_key_value_heads")
    others = config.get("num_key_value_heads", KV_HEADS)
    if config.get("attention_k_eq_v") and heads not in (None, others):
        yield "num_key_value_heads"
    if config.get("global_head_dim", GLOBAL_HEAD_DIM) != config.get("head_dim", HEAD_DIM):
        yield "head_dim"
