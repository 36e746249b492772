"""Checkpoint names made the engine's, as WeightsMapper does it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from quantplan.dispatch.renames import read_renames, rename, renamed

QWEN3_VL = read_renames([{"prefix": {
    "model.visual.": "visual.", "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model."}}])
"""Qwen3VLForConditionalGeneration.hf_to_vllm_mapper (vllm 0.32.0 models/qwen3_vl.py)."""


class Fields(NamedTuple):
    ignore: tuple[str, ...]
    targets: dict[str, int]


@pytest.mark.parametrize(("given", "engine"), [
    ("model.visual.blocks.0.attn.qkv", "visual.blocks.0.attn.qkv"),
    ("model.language_model.layers.0.mlp.gate", "language_model.model.layers.0.mlp.gate"),
    ("lm_head", "lm_head"),
    ("lm_head.weight", "language_model.lm_head.weight"),
    ("visual.model.visual.x", "visual.model.visual.x"),
])
def test_a_prefix_is_replaced_at_the_beginning_only(given: str, engine: str) -> None:
    assert rename(given, QWEN3_VL) == engine


def test_rules_apply_in_the_mapper_s_order_and_mappers_one_after_the_other() -> None:
    first = {"regex": {r"\.(\d+)\.b": r".\1.c"}, "substr": {".c": ".d"}, "suffix": {".x": ".y"}}
    mappers = read_renames([first, {"prefix": {"a.": "z."}}])
    assert rename("a.0.b.x", mappers) == "z.0.d.y"


def test_classes_and_expressions_are_no_paths() -> None:
    fields = Fields(("re:model.visual.*", "model.visual.a"), {"Linear": 1, "model.visual.b": 2})
    found = renamed(fields, {"ignore": "paths", "targets": "paths"}, QWEN3_VL)
    assert found == Fields(("re:model.visual.*", "visual.a"), {"Linear": 1, "visual.b": 2})
    assert renamed(fields, {"ignore": "names"}, ()) is fields


def test_a_config_with_no_listed_names_may_be_of_any_type() -> None:
    """HummingConfig keeps the whole config, and renames what it ignores itself."""
    assert renamed({"ignore": ["a.b"]}, {}, read_renames([{"prefix": {"a.": "c."}}])) == {
        "ignore": ["a.b"]}
