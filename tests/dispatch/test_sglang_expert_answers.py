"""Model classes of experts and of hybrid layers on SGLang 0.5.22: what the engine answered, layer
by layer, for the configs of our families' tests under several quantizations, GPUs and ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantplan import explain

CASES = [json.loads(line) for line in
         (Path(__file__).parent / "sglang_expert_answers.jsonl").read_text().splitlines()]


def ask(case: dict[str, Any]) -> dict[str, Any]:
    """Return our answer to a case."""
    return explain(case["config"], engine="sglang", engine_version="0.5.22",
                   **case["options"]).to_dict()


def differences(case: dict[str, Any], answer: dict[str, Any]) -> list[Any]:
    """Return what differs from the engine's answer. A path stands for the layers of one kind, so
    the engine's line is looked for among ours."""
    if "error" in case:
        error = answer["error"] or {}
        found = [error.get("type"), error.get("message")]
        return [] if found == case["error"] else [found]
    if answer["error"]:
        return [answer["error"]["message"]]
    ours = [[x["path"], x["module"], x["method"], x.get("scheme"), x.get("kernel"),
             x.get("moe_runner_backend")] for x in answer["layers"]]
    return [line for line in case["layers"] if not any(_fits(line, own) for own in ours)]


def _fits(line: list[Any], own: list[Any]) -> bool:
    """Return whether our line says the same; the engine's experts name no kernel."""
    return all(theirs == mine or (theirs is None and index in (4, 5))
               for index, (theirs, mine) in enumerate(zip(line, own, strict=True)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_engines_answer(case: dict[str, Any]) -> None:
    answer = ask(case)
    assert differences(case, answer) == []
    if "layers" in case:
        named = {x["path"] for x in answer["layers"] if x["module"] != "RadixAttention"}
        assert named == {line[0] for line in case["layers"]}
