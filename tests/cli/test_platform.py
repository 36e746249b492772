"""`quantplan explain --platform`: what it prints, its JSON and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator, validate
from quantplan.tables.errors import QuantplanError

from quantplan import reports
from quantplan.cli import quantplan

SCHEMAS = Path(str(reports.__file__)).parent / "schema"
SCHEMA: dict[str, Any] = json.loads((SCHEMAS / "platform.v1.json").read_text(encoding="utf-8"))


def run(*arguments: str) -> Result:
    """Return the result of `explain` of a bundled model; raises what it refuses."""
    result = CliRunner().invoke(quantplan, ["explain", "qwen3-8b", *arguments])
    if isinstance(result.exception, QuantplanError):
        raise result.exception
    return result


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("arguments, engines, code", [
    (("--platform", "rocm", "--as", "fp8-block", "--gpu", "gfx942"), ["vllm", "sglang"], 0),
    (("--platform", "cpu", "--as", "gptq"), ["vllm", "sglang"], 0),
    (("--platform", "npu", "--as", "gptq"), ["sglang"], 0),
    (("--platform", "rocm", "--as", "gptq"), ["vllm", "sglang"], 1),
    (("--platform", "rocm", "--as", "gptq", "--engine", "vllm"), ["vllm"], 0),
    (("--platform", "xpu", "-q", "quark", "--engine", "vllm@0.33.0"), ["vllm"], 1),
])
def test_every_answer_follows_the_schema(
    arguments: tuple[str, ...], engines: list[str], code: int
) -> None:
    result = run(*arguments, "--format", "json")
    answer = json.loads(result.output)
    views = answer if isinstance(answer, list) else [answer]
    for view in views:
        validate(view, SCHEMA)
    assert ([view["engine"]["name"] for view in views], result.exit_code) == (engines, code)
    assert any(view["refused"] for view in views) is bool(code)


def test_the_text_says_what_it_rests_on() -> None:
    result = run("--platform", "rocm", "--gpu", "MI300X", "--as", "fp8-block", "--engine", "vllm")
    assert result.output.startswith("qwen3-8b as fp8-block on rocm (gfx942), bfloat16\n")
    assert "platform: rocm, read from the engine's source, not checked against hardware" in (
        result.output)
    assert "\n  FP8       float8_e4m3fnuz\n" in result.output
    assert "Not known from here:" in result.output


def test_a_refusal_in_the_engine_s_words() -> None:
    result = run("--platform", "rocm", "--as", "gptq", "--engine", "sglang")
    assert result.exit_code == 1
    assert "gptq_marlin quantization is currently not supported in ROCm." in result.output


@pytest.mark.parametrize("arguments, code, what", [
    (("--platform", "npu", "--engine", "vllm"), 4, "vllm 0.32.0 on npu"),
    (("--platform", "rocm", "--tp", "2", "--moe-backend", "triton"), 4,
     "--moe-backend with --platform rocm"),
    (("--platform", "rocm", "--capability", "9.4"), 2, "--capability with --platform rocm"),
    (("--platform", "cpu", "--gpu", "h100"), 2, "--gpu h100 with --platform cpu"),
    (("--platform", "rocm", "--why-not", "TritonFp8BlockScaledMMKernel"), 2,
     "--why-not with --platform rocm"),
])
def test_questions_without_an_answer(arguments: tuple[str, ...], code: int, what: str) -> None:
    with pytest.raises(QuantplanError) as caught:
        run(*arguments)
    assert (caught.value.exit_code, caught.value.what) == (code, what)


def test_cuda_is_the_default() -> None:
    asked = ("--capability", "9.0", "--engine", "vllm", "--format", "json")
    assert json.loads(run(*asked).output) == json.loads(run(*asked, "--platform", "cuda").output)


def test_the_methods_of_every_platform() -> None:
    result = CliRunner().invoke(quantplan, ["tables", "platforms", "sglang", "--format", "json"])
    data = json.loads(result.output)
    validate(data, json.loads((SCHEMAS / "tables-platforms.v1.json").read_text(encoding="utf-8")))
    states = {row["id"]: {name: cell["state"] for name, cell in row["platforms"].items()}
              for row in data["methods"]}
    assert states["gptq"] == {"cpu": "accepted", "rocm": "not registered", "xpu": "accepted",
                              "npu": "accepted"}
    assert states["modelopt_fp8"] == {"cpu": "refused", "rocm": "refused", "xpu": "accepted",
                                      "npu": "accepted"}


def test_the_methods_as_a_table() -> None:
    lines = CliRunner().invoke(quantplan, ["tables", "platforms", "sglang"]).output.splitlines()
    assert lines[0] == ("SGLang 0.5.22: read from the engine's source, not checked against "
                        "hardware")
    row = next(line for line in lines if line.startswith("  mxfp4 "))
    assert row.split() == ["mxfp4", "Mxfp4Config", "on", "gfx950", "Mxfp4Config",
                           "Mxfp4W4A4Config"]
