"""The modules of every family against the engine's own, built on meta tensors
(tests/golden/families-vllm-0.32.0.jsonl)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.shard import on_ranks, shard
from quantplan.dispatch.structure import Module, Structure

FILE = Path(__file__).parents[1] / "golden" / "families-vllm-0.32.0.jsonl"
CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def structure(case: dict[str, Any]) -> Structure:
    """Return what quantplan builds for the case's config."""
    return model_structure(Checkpoint("x", "mapping", case["config"]))


def built(module: Module, index: int | None, tp: int) -> list[Any]:
    """Return class, n, k, name, bias and output partitions of a module on rank 0."""
    module = on_ranks(module, tp)
    cut = shard(module, tp)
    n, k, parts = (cut.n, cut.k, list(cut.parts)) if module.leaves else (None, None, None)
    return [module.module, n, k, module.known_at(index), module.bias, parts]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_modules_are_the_engine_s(case: dict[str, Any]) -> None:
    ours = {(module.path, index): built(module, index, case["tp"])
            for module, index in structure(case).sites() if module.kind != "norm"}
    assert ours == {(path, index): [name, n, k, known.replace("*", str(index)), *rest]
                    for path, layers, name, n, k, known, *rest in case["modules"]
                    for index in (layers or (None,))}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_fused_names_are_the_engine_s(case: dict[str, Any]) -> None:
    """packed_modules_mapping of the engine's class."""
    packed = {name: list(leaves) for name, leaves in structure(case).packed.items()}
    assert packed == (case["packed"] or {})
