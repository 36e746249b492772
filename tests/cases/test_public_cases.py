"""What a user of vLLM 0.32.0 needs to hear in cases that users reported.

public_cases.jsonl: `source` is the public report, `config` and `ask` its model (cut to a few
layers) and flags, `expect` what vLLM 0.32.0's own selection answers to it (outcome, error, kernel
and mode per module path), and the findings that say what the engine does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantplan import explain

LINES = (Path(__file__).parent / "public_cases.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]


def answer(case: dict[str, Any]) -> dict[str, Any]:
    return explain(case["config"], engine_version="0.32.0", **case["ask"]).to_dict()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['source']}")
def test_the_engine_s_answer(case: dict[str, Any]) -> None:
    got, expect = answer(case), case["expect"]
    error = got["error"]
    assert got["outcome"] == expect["outcome"]
    assert ([error["type"], error["message"]] if error else None) == expect.get("error")
    for path, (kernel, mode) in expect.get("kernels", {}).items():
        rows = [r for r in got["layers"] if r["path"] == path]
        assert (kernel, mode) in [
            (r["kernel"] or r.get("experts", {}).get("class"), r["mode"]) for r in rows]


@pytest.mark.parametrize("case", [c for c in CASES if "findings" in c["expect"]],
                         ids=lambda case: f"{case['id']}-{case['source']}")
def test_what_the_engine_does_not_say(case: dict[str, Any]) -> None:
    assert set(case["expect"]["findings"]) <= {f["id"] for f in answer(case)["findings"]}


@pytest.mark.parametrize("case", [c for c in CASES if c["expect"]["outcome"] == "ok"],
                         ids=lambda case: f"{case['id']}-{case['source']}")
def test_a_wrapper_s_text_config_is_no_mistake(case: dict[str, Any]) -> None:
    assert "text-config-of-a-text-model" not in {f["id"] for f in answer(case)["findings"]}
