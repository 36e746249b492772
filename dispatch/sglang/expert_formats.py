"""The format of routed experts, which the server looks for before it chooses their runner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint

Config = Mapping[str, Any]
INT4_GROUPS: Config = {"num_bits": 4, "group_size": 32, "strategy": "group", "type": "int"}
"""Weights of Kimi-K2's thinking models and of K2.5."""
MXFP4, UNPACKED, NONE = "mxfp4", "mxfp4_unpacked", "none"
"""MXFP4 beside FP8, the same made FP8 while loading, and nothing besides the method's own."""
UNSET = "unset"
"""How rows spell a variable that is not set."""
EXPERT_WEIGHT = re.compile(r"\.experts\.\d+\.(?:w[123]|down_proj|up_proj|gate_proj)\.weight$")
PACKED_DTYPES = {"U8": True, "I8": True, "F4": True, "F8_E4M3": False}
"""Dtype of an expert's weight -> whether it is packed MXFP4."""


def experts_format(model: Config, checkpoint: Checkpoint, variables: Config) -> str:
    """Return the format of the routed experts: nvfp4 beside FP8, mxfp4, mxfp4_unpacked,
    mxfp4_groups of compressed-tensors, int4_groups, none (configs/model_config.py:ModelConfig).
    `model` is the model class' row, `variables` are the environment's facts."""
    config = _part(checkpoint.config, "quantization_config")
    if _says(config, "quant_algo") == "MIXED_PRECISION" and _says(
            config, "moe_quant_algo") == "NVFP4" and config.get("group_size") is not None:
        return "nvfp4"
    said = config.get("routed_experts_quant_method")
    if said == MXFP4 or (said is None and _packed_unsaid(model, checkpoint, variables)):
        return UNPACKED if variables["env.SGLANG_DSV4_FP4_DEQUANT"] is True else MXFP4
    if _has_mxfp4_groups(checkpoint.config):
        return "mxfp4_groups"
    return "int4_groups" if _has_int4_groups(config) else NONE


def backend_of_experts(model: Config, form: str, family: int) -> str:
    """Return what --moe-runner-backend auto becomes by the format of the routed experts: the
    first of the model class' rows that fits, else auto."""
    return next((str(row["backend"]) for row in model.get("experts_backends", ())
                 if family in row.get("families", (family,)) and row["format"] == form), "auto")


def _packed_unsaid(model: Config, checkpoint: Checkpoint, variables: Config) -> bool:
    """Return whether the experts of a class whose config does not say are packed MXFP4: the
    variable says so, but where it is not set, or the other one is, the header of the first
    expert's weight does (configs/deepseek_v4.py:try_detect_fp4_experts)."""
    if not model.get("packed_experts"):
        return False
    said = variables["env.SGLANG_DSV4_FP4_EXPERTS"]
    if said == UNSET or variables["env.SGLANG_DSV4_FP4_DEQUANT"] != UNSET:
        first = next((t for name, t in (checkpoint.tensors or {}).items()
                      if EXPERT_WEIGHT.search(name)), None)
        if first is not None:
            return PACKED_DTYPES.get(first.dtype, True)
    return said is not False


def _has_mxfp4_groups(config: Config) -> bool:
    """Return whether a group of the language model's own quantization config is MXFP4
    (arg_groups/model_override_base.py:_is_mxfp4_pack_quantized)."""
    text = _part(config, "text_config") if "text_config" in config else config
    groups = _part(_part(text, "quantization_config"), "config_groups").values()
    return any("mxfp4" in str(group.get("format", "")) for group in groups
               if isinstance(group, Mapping))


def _has_int4_groups(config: Config) -> bool:
    """Return whether group_0 of a compressed-tensors config has integers of 4 bits in groups of 32
    (arg_groups/overrides.py:_deepseek_moe_quant_resolution)."""
    weights = _part(_part(_part(config, "config_groups"), "group_0"), "weights")
    return config.get("quant_method") == "compressed-tensors" and all(
        weights.get(name) == value for name, value in INT4_GROUPS.items())


def _says(config: Config, field: str) -> str:
    return str(config.get(field, "")).upper()


def _part(config: Config, name: str) -> Config:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
