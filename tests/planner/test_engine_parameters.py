"""What one rank allocates before loading, against the engine's own model classes.

engine_parameters.jsonl.gz: `elements` are those of the parameters that vLLM 0.32.0's class of the
config has on one of `tp` ranks, by dtype, built with meta tensors and without quantization.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.structure import Structure
from quantplan.planner.parts import plain_parts
from quantplan.planner.weights import cut_modules

with gzip.open(Path(__file__).with_name("engine_parameters.jsonl.gz"), "rt") as lines:
    CASES: list[dict[str, Any]] = [json.loads(line) for line in lines]


def elements(structure: Structure, tp: int, dtype: str) -> Counter[str]:
    """Return dtype -> elements of one rank's weights, without copies made after loading."""
    found: Counter[str] = Counter()
    for module, layers, cuts in cut_modules(structure, tp):
        for position, cut in enumerate(cuts if module.kind != "copy" else ()):
            for part in plain_parts(module, module.leaves[position], dtype):
                found[module.dtype or dtype] += part.rank_values(cut, module.path) * len(layers)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}/{case['tp']}")
def test_the_engine_has_as_many_parameters(case: dict[str, Any]) -> None:
    """Of every dtype, on one rank."""
    structure = model_structure(Checkpoint("", "engine", case["config"]), weighed=True)
    assert structure.complete
    assert dict(elements(structure, case["tp"], case["dtype"])) == case["elements"]


def test_most_classes_are_compared() -> None:
    """The engine builds at least a hundred model classes from the configs of the tables."""
    assert len({case["config"]["architectures"][0] for case in CASES}) >= 100
