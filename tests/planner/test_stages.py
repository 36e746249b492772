"""Pipeline stages: vLLM 0.32.0 distributed/utils.py:get_pp_indices."""

from __future__ import annotations

import pytest
from known_models import model
from quantplan.dispatch.families import model_structure
from quantplan.planner.stages import stages
from quantplan.planner.weights import weigh
from quantplan.tables.errors import UsageError


@pytest.mark.parametrize("layers, pp, sizes", [
    (32, 1, [32]), (32, 4, [8, 8, 8, 8]), (61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]),
    (63, 4, [16, 16, 16, 15]), (31, 2, [16, 15]), (5, 3, [2, 2, 1]),
])
def test_what_is_left_over_goes_to_the_middle(layers: int, pp: int, sizes: list[int]) -> None:
    found = stages(layers, pp)
    assert [(stage.end or 0) - stage.start for stage in found] == sizes
    assert [stage.first for stage in found] == [True] + [False] * (pp - 1)
    assert [stage.last for stage in found] == [False] * (pp - 1) + [True]


def test_a_partition_is_taken_as_given() -> None:
    found = stages(32, 2, "20,12")
    assert [(stage.start, stage.end) for stage in found] == [(0, 20), (20, 32)]


@pytest.mark.parametrize("partition", ["20", "20,13", "20,x", ""])
def test_a_partition_that_is_none_is_refused(partition: str) -> None:
    with pytest.raises(UsageError, match="VLLM_PP_LAYER_PARTITION"):
        stages(32, 2, partition)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="pipeline parallel size"):
        stages(4, 8)


def test_stages_hold_the_model_once() -> None:
    checkpoint = model("llama-3.1-8b")
    structure = model_structure(checkpoint)
    parts = [weigh(checkpoint, structure, stage=stage) for stage in stages(32, 4)]
    assert sum(part.bytes for part in parts) == weigh(checkpoint, structure).bytes
    names = [{line.name for line in part.lines} for part in parts]
    assert "embeddings" in names[0] and "lm_head" not in names[0]
    assert "lm_head" in names[3] and "embeddings" not in names[3]


def test_the_last_stage_has_a_tied_embedding_too() -> None:
    # models/qwen2.py: embed_tokens on the first rank, and on the last where the head is tied to it.
    checkpoint = model("qwen2.5-0.5b")
    structure = model_structure(checkpoint)
    first, last = (weigh(checkpoint, structure, stage=stage) for stage in stages(24, 2))
    embedding = 151936 * 896 * 2
    assert first.bytes + last.bytes == weigh(checkpoint, structure).bytes + embedding


def test_sglang_gives_further_layers_to_the_last_stages() -> None:
    """sglang 0.5.22 distributed/utils.py:get_pp_indices of 61 layers, and its variable."""
    assert [(s.start, s.end) for s in stages(61, 4, engine="sglang")] == [
        (0, 15), (15, 30), (30, 45), (45, 61)]
    assert [(s.start, s.end) for s in stages(32, 3, engine="sglang")] == [
        (0, 10), (10, 21), (21, 32)]
    with pytest.raises(UsageError, match="SGLANG_PP_LAYER_PARTITION"):
        stages(32, 2, "20,13", "sglang")
