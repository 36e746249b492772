"""Differences that a finding of ours explains are no disagreements, and are told apart."""

from __future__ import annotations

from typing import Any

from quantplan.tables.engine_loading import load_engine

from quantplan import explain
from quantplan.oracle.cases import Case
from quantplan.oracle.run import judge
from tests.dispatch.test_sglang_verified import DEEPSEEK_V4

TABLE = load_engine("sglang", "0.5.22")
WO_A = "model.layers.*.self_attn.wo_a"


def answer(capability: int, changed: str) -> dict[str, Any]:
    """The engine's answer is ours, but for the method of the layers at `changed`."""
    ours = explain(DEEPSEEK_V4, engine="sglang", engine_version="0.5.22",
                   capability=capability).to_dict()
    layers = [{**row, "path": row["path"].replace("*", str(index), 1),
               "method": "Other" if row["path"] == changed else row["method"]}
              for row in ours["layers"] for index in row["indices"] or [""]]
    for layer in layers:
        layer.pop("rejected", None)
        layer.pop("experts", None)
    return {"outcome": "ok", "machine": {}, "method": ours["method"]["resolved"],
            "config_class": ours["method"]["config_class"],
            "min_capability": ours["method"]["min_capability"],
            "dtype": ours["deployment"]["dtype"], "layers": layers}


def status(capability: int, changed: str) -> tuple[str, str | None]:
    verdict = judge(Case("x", "fp8", DEEPSEEK_V4, capability), answer(capability, changed), TABLE)
    return verdict.status, verdict.reason


def test_the_layer_that_the_server_sets_is_explained_in_the_finding_s_words() -> None:
    found, reason = status(120, WO_A)
    assert found == "explained"
    assert str(reason).startswith("model.layers.0.self_attn.wo_a: the server sets ")


def test_other_layers_and_other_gpus_are_not() -> None:
    assert status(120, "model.layers.*.self_attn.wo_b")[0] == "disagree"
    assert status(100, WO_A)[0] == "disagree"
