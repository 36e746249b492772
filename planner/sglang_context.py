"""The longest context that SGLang serves (utils/hf_transformers/common.py:get_context_length)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.planner.sglang_pools import Refused

Rules = Mapping[str, Any]
UNSCALED = ("default", "llama3", "yarn", "longrope")
"""Kinds of rotary scaling that leave max_position_embeddings as it is: transformers gives the
config their original length."""


def context_tokens(rules: Rules, config: Mapping[str, Any]) -> int:
    """Return the tokens of the longest context of a text config, 2048 where it names none."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    scaled = "factor" in scaling and kind not in UNSCALED and (
        "original_max_position_embeddings" not in scaling)
    longest = next((config[name] for name in rules["context_fields"]
                    if config.get(name) is not None), None)
    return 2048 if longest is None else int((scaling["factor"] if scaled else 1) * longest)


def longer_context(
    rules: Rules, derived: int, asked: int | None, env: Mapping[str, str]
) -> Refused | None:
    """Return the refusal of a --context-length beyond the model's own, unless a variable allows
    it (configs/model_config.py:ModelConfig)."""
    row = rules["longer_context"]
    allowed = env.get(row["variable"], "").lower() in ("1", "true")
    if asked is None or asked <= derived or allowed:
        return None
    words = row["message"].replace("{asked}", str(asked)).replace("{derived}", str(derived))
    return Refused(row["type"], words, f"Pass --context-length {derived} or less.")
