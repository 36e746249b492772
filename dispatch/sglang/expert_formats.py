"""Formats of routed experts that the server looks for before it chooses their runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint

Config = Mapping[str, Any]
INT4_GROUPS: Config = {"num_bits": 4, "group_size": 32, "strategy": "group", "type": "int"}
"""Weights of Kimi-K2's thinking models and of K2.5."""


def backend_of_experts(model: Config, checkpoint: Checkpoint, family: int) -> str:
    """Return what --moe-runner-backend auto becomes by the format of the routed experts: the
    first of the model class' rows that fits, else auto."""
    rows = (row for row in model.get("experts_backends", ())
            if family in row.get("families", (family,)))
    return next((str(row["backend"]) for row in rows if FORMATS[row["format"]](checkpoint)), "auto")


def _int4_groups(checkpoint: Checkpoint) -> bool:
    """Return whether group_0 of a compressed-tensors config has integers of 4 bits in groups of 32
    (arg_groups/overrides.py:_deepseek_moe_quant_resolution)."""
    config = _part(checkpoint.config, "quantization_config")
    weights = _part(_part(_part(config, "config_groups"), "group_0"), "weights")
    return config.get("quant_method") == "compressed-tensors" and all(
        weights.get(name) == value for name, value in INT4_GROUPS.items())


def _part(config: Config, name: str) -> Config:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


FORMATS: Mapping[str, Callable[[Checkpoint], bool]] = {"int4_groups": _int4_groups}
"""Name in `experts_backends` -> whether the checkpoint's experts have it."""
