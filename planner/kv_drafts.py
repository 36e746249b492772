"""The caches that a draft model's layers add to the target's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.planner.kv_blocks import Cached
from quantplan.planner.kv_spec import FULL
from quantplan.tables.errors import NotKnownError

WITHOUT_LAYERS = ("ngram", "ngram_gpu", "suffix")
"""Methods that propose from the text alone (vllm config/speculative.py:SpeculativeMethod)."""
OWN_LAYERS = ("mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "glm4_moe_mtp", "ernie_mtp")
"""Methods whose layers are the checkpoint's own, behind the model's."""
LAYER_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def with_drafts(
    layers: list[Cached], speculative: Mapping[str, Any] | None, config: Mapping[str, Any],
    num_layers: int,
) -> list[Cached]:
    """Return the caches with those of the draft's layers behind them: a model's own next-token
    layers attend as its last attention layer does.

    Raises NotKnownError for a draft whose layers are not known from here.
    """
    if not speculative:
        return layers
    method = str(speculative.get("method") or "a draft model")
    if method in WITHOUT_LAYERS:
        return layers
    count = next((config[name] for name in LAYER_COUNTS if isinstance(config.get(name), int)), 0)
    last = _last_attention(layers)
    if method not in OWN_LAYERS or not count or not last:
        raise NotKnownError(f"the KV cache of the draft's layers ({method})",
                            wanted="a method without layers, or mtp with the model's own",
                            hint="Ask without --speculative-config for the target alone.")
    return [*layers, *(layer._replace(name=f"mtp.layers.{num_layers + i}.{layer.name}")
                       for i in range(count) for layer in last)]


def _last_attention(layers: list[Cached]) -> list[Cached]:
    """Return the caches of the last layer that attends, none where kinds of attention differ."""
    if any(layer.spec.kind not in {FULL, "state"} for layer in layers):
        return []
    full = [layer for layer in layers if layer.spec.kind == FULL]
    last = next((part for layer in full[-1:] for part in layer.name.split(".")
                 if part.isdecimal()), None)
    return [layer for layer in full if last in layer.name.split(".")]
