"""Configs that Transformers' config class refuses: layers that differ in what the server asks of
the whole model (utils/hf_transformers/config.py:get_config)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.trace import refuse

SLIDING = "sliding_attention"


def check_even(table: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse a config whose layers with a sliding window have another number of heads."""
    config = checkpoint.config
    for row in table["uneven_configs"]:
        inner = config.get(row["within"])
        other = config.get(row["field"], inner.get(row["asked"]) if isinstance(inner, Mapping)
                           else None)
        if config.get("model_type") not in row["model_types"] or (
                SLIDING not in (config.get("layer_types") or ())
                or other in (None, config.get(row["asked"]))):
            continue
        name = row["asked"]
        raise refuse("config fields", row["type"],
                     f"'{name}' is a per-layer attribute and may vary across layers. Access it via "
                     "the individual layer configs instead (e.g. "
                     f"config.per_layer_config[i].{name}). To read the global config value from "
                     f"config.{name} anyway, set `allow_global_per_layer_attribute_access` to "
                     "`True` on the config. Warning: only do this if the caller can safely handle "
                     "heterogeneous configs; code that assumes a homogeneous model may use the "
                     "global value incorrectly.", None, row["source"],
                     hint="Use an engine version that goes with another Transformers.")
