"""Routed experts against vLLM 0.32.0: experts_answers.jsonl holds, per question, the method, the
experts class and the backend that the engine chose on an emulated GPU, or what it raised; some rows
also hold the classes that it turned down and its reasons. experts_configs.json holds the models and
the quantization configs that the rows name. The engine's backend is null where its method holds
none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantplan import explain

HERE = Path(__file__).parent
ROWS = [json.loads(line) for line in
        (HERE / "experts_answers.jsonl").read_text(encoding="utf-8").splitlines()]
CONFIGS = json.loads((HERE / "experts_configs.json").read_text(encoding="utf-8"))
OPTIONS = ("dtype", "quantization", "moe_backend", "libs", "env", "enable_expert_parallel", "dp")


def ask(row: dict[str, Any]) -> dict[str, Any]:
    config = {**CONFIGS[row["model"]], **row.get("sizes", {})}
    if row["quant"]:
        config["quantization_config"] = CONFIGS[row["quant"]]
    options = {name: row[name] for name in OPTIONS if name in row}
    return explain(config, engine_version="0.32.0", capability=row["capability"],
                   tp=row.get("tp_size", 1), **options).to_dict()


def name(row: dict[str, Any]) -> str:
    given = [f"{key}={row[key]}" for key in OPTIONS if key in row and key != "dtype"]
    sizes = ",".join(map(str, row.get("sizes", {}).values()))
    return "-".join(str(part) for part in (
        row["model"], sizes, row["quant"], row["capability"], row.get("tp_size", 1), *given))


@pytest.mark.parametrize("row", [row for row in ROWS if "experts" in row], ids=name)
def test_the_experts_are_the_engine_s(row: dict[str, Any]) -> None:
    found = next(layer for layer in ask(row)["layers"] if layer.get("experts"))
    method, chosen, backend = row["experts"]
    assert found["method"] == method
    if chosen:
        assert found["experts"]["class"] == chosen
    if backend:
        assert found["experts"]["backend"] == backend


@pytest.mark.parametrize("row", [row for row in ROWS if "error" in row], ids=name)
def test_the_errors_are_the_engine_s(row: dict[str, Any]) -> None:
    error = ask(row)["error"]
    assert [error["type"], error["message"], error["layer"]] == row["error"]


@pytest.mark.parametrize("row", [row for row in ROWS if "rejected" in row], ids=name)
def test_the_reasons_are_the_engine_s(row: dict[str, Any]) -> None:
    found = next(layer for layer in ask(row)["layers"] if layer.get("experts"))
    told = [[c["kernel"], c["engine_reason"]] for c in found["rejected"]]
    assert [pair for pair in told if pair in row["rejected"]] == row["rejected"]
