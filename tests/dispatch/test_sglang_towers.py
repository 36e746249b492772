"""Towers whose sizes or layers differ from the checkpoint's: the engine's answers, by verify."""

from __future__ import annotations

from quantplan import explain
from quantplan.oracle.grid_models import grid_models


def test_qwen_2_5_vl_rounds_its_tower_up() -> None:
    """3420 becomes 3424, a multiple of 8 (models/qwen2_5_vl.py:Qwen2_5_VisionTransformer)."""
    config = grid_models("sglang")["Qwen2_5_VLForConditionalGeneration"][0]
    layers = explain(config, engine="sglang", capability="9.0").to_dict()["layers"]
    sizes = {row["path"].rpartition(".")[2]: (row["n"], row["k"]) for row in layers
             if row["path"].startswith("visual.blocks.")}
    assert (sizes["gate_up_proj"], sizes["down_proj"]) == ((6848, 1280), (1280, 3424))
