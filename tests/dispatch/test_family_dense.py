"""Dense families against vLLM 0.32.0: dense_families.jsonl holds, per model and tensor parallel
size, the modules that the engine's own classes build: path -> class, n, k (Attention: head size and
kv heads of one rank)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.shard import kv_heads_per_rank, shard

LINES = (Path(__file__).parent / "dense_families.jsonl").read_text(encoding="utf-8").splitlines()
ROWS = [json.loads(line) for line in LINES]


def built(config: dict[str, Any], tp: int) -> dict[str, list[Any]]:
    found = {}
    for module in model_structure(Checkpoint("x", "mapping", config)).modules:
        part = shard(module, tp)
        n, k = part.n, part.k
        if module.kind == "attention":
            n, k = module.facts["head_dim"], kv_heads_per_rank(module.facts["kv_heads"], tp)
        found[module.path] = [module.module, n, k]
    return {path: row for path, row in found.items() if row[0] != "RMSNorm"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['id']}-tp{row['tp']}")
def test_the_modules_are_the_engine_s(row: dict[str, Any]) -> None:
    assert built(row["config"], row["tp"]) == row["layers"]


@pytest.mark.parametrize(("name", "packed"), [
    ("gemma2", {"qkv_proj": ("q_proj", "k_proj", "v_proj"),
                "gate_up_proj": ("gate_proj", "up_proj")}),
    ("phi3", {"qkv_proj": ("qkv_proj",), "gate_up_proj": ("gate_up_proj",)}),
    ("glm", {"qkv_proj": ("q_proj", "k_proj", "v_proj")}),
    ("chatglm", {"query_key_value": ("query_key_value",), "dense_h_to_4h": ("dense_h_to_4h",)}),
    ("falcon", {"query_key_value": ("query_key_value",)}),
    ("nemotron", {"qkv_proj": ("q_proj", "k_proj", "v_proj")}),
    ("stablelm", {}), ("gptneox", {}),
])
def test_fused_layers_are_those_of_packed_modules_mapping(
    name: str, packed: dict[str, tuple[str, ...]]
) -> None:
    """packed_modules_mapping as the engine hands it to the quantization config."""
    row = next(row for row in ROWS if row["id"] == name)
    assert model_structure(Checkpoint("x", "mapping", row["config"])).packed == packed
