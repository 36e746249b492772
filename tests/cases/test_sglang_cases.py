"""What SGLang answers to cases that users reported, of itself and of vLLM.

sglang_cases.jsonl: `source` is the public report; the model is `config`, or that of the case
`config_of` of public_cases.jsonl; `ask` are the flags, `expect` what SGLang's own code answers on
an emulated GPU (`expect_0.5.23` where that version differs): the outcome with its error, or the
method and its class, the KV cache's dtype, the attention backend, and for the first layer of each
kind its method, scheme, operator and MoeRunner. <model> and <hub> stand for the model's folder and
the hub's address.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain

HERE = Path(__file__).parent


def lines(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of this folder."""
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


CASES = lines("sglang_cases.jsonl")
CONFIGS = {case["id"]: case["config"] for case in lines("public_cases.jsonl")}


def answer(case: dict[str, Any], version: str) -> dict[str, Any]:
    """Return our answer; skips what the tables do not know, with the reason that they give."""
    config = case.get("config") or CONFIGS[case["config_of"]]
    try:
        return explain(config, engine="sglang", engine_version=version, **case["ask"]).to_dict()
    except NotKnownError as error:
        pytest.skip(f"not known: {error}")


def layers(view: dict[str, Any]) -> dict[str, list[Any]]:
    """Return method, scheme, operator and runner of every layer by its path."""
    found = {}
    for row in view["layers"]:
        for index in row["indices"] or [None]:
            path = row["path"] if index is None else row["path"].replace("*", str(index), 1)
            found[path] = [row["method"], row["scheme"], row["kernel"],
                           row.get("moe_runner_backend")]
    return found


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['source']}")
def test_the_engine_s_answer(case: dict[str, Any], version: str) -> None:
    got, expect = answer(case, version), case.get(f"expect_{version}", case["expect"])
    error = got["error"]
    told = [error["type"], error["message"].replace("https://hf.co", "<hub>")] if error else None
    assert (got["outcome"], told) == (expect["outcome"], expect.get("error"))
    if error is None:
        assert [got["method"]["resolved"], got["method"]["config_class"],
                got["kv_cache"]["resolved"]] == [
            expect["method"], expect["config_class"], expect["kv_cache"]]
        assert expect["attention"] in {
            backend for row in got["layers"] if row.get("kv_cache_dtype")
            for backend in (row["attn_backend"], row.get("prefill_backend"))}
        ours = layers(got)
        for path, wanted in expect["layers"].items():
            assert [path, *ours[path]] == [path, *wanted]


@pytest.mark.parametrize("whole, text, dtype", [
    ({"torch_dtype": "bfloat16"}, {}, "bfloat16"), ({}, {}, "float16"),
    ({"torch_dtype": "bfloat16"}, {"dtype": None}, "bfloat16"),
])
def test_a_text_config_without_a_dtype_has_the_whole_s(
    whole: dict[str, Any], text: dict[str, Any], dtype: str
) -> None:
    """Qwen3-VL; the engine's own answers."""
    config = next(case["config"] for case in CASES if case["id"] == "Q082-q3vl-null")
    kept = {key: value for key, value in config.items()
            if key not in ("dtype", "torch_dtype", "quantization_config", "text_config")}
    own = {key: value for key, value in config["text_config"].items()
           if key not in ("dtype", "torch_dtype", "quantization_config")}
    asked = {**kept, **whole, "text_config": {**own, **text}}
    assert explain(asked, engine="sglang", capability="9.0").trace.dtype == dtype
