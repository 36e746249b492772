"""The command line on its good days: what each command prints, and the exit codes of answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from jsonschema import validate
from quantplan.dispatch.bundled import bundled_models
from quantplan.dispatch.gpu import all_gpus
from quantplan.tables.errors import NotKnownError

from quantplan import __version__, budget, explain, reports
from quantplan.cli import quantplan

SCHEMAS = Path(str(reports.__file__)).parent / "schema"


def run(*arguments: str) -> Result:
    """Return the result of a command that ends without an error."""
    result = CliRunner().invoke(quantplan, arguments, standalone_mode=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return `python -m quantplan ARGUMENTS` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "quantplan", *arguments], capture_output=True, text=True,
        check=False, timeout=60, env={**os.environ, **variables})


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Return the path of a config.json of Llama-3.1-8B, static FP8."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": quantization("fp8-static")}))
    return str(path)


# Help, version, completion.


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"quantplan, version {__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_has_the_commands_and_the_exit_codes(flag: str) -> None:
    result = run(flag)
    assert result.exit_code == 0
    for name in quantplan.commands:
        assert f"\n  {name} " in result.output
    text = " ".join(result.output.split())
    assert ("Exit codes: 0 it starts and fits, perhaps on a condition that is named; 1 the engine "
            "would refuse, fail or not fit; 2 usage; 3 bad or unreadable checkpoint; 4 not "
            "known (no table, unknown layout); 5 our bug.") in text


def test_no_arguments_are_help_on_several_lines() -> None:
    """Not an error of one line with its newlines escaped."""
    done = process()
    assert done.returncode in (0, 2)
    assert "\n  explain " in done.stdout + done.stderr
    assert "\\n" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(quantplan.commands))
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: quantplan {name} ")


@pytest.mark.parametrize("shell, words", [("bash", "complete -o nosort -F"),
                                          ("zsh", "#compdef quantplan"),
                                          ("fish", "complete --no-files --command quantplan")])
def test_completion_script(shell: str, words: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert words in result.output
    assert "_QUANTPLAN_COMPLETE" in result.output


def test_completion_completes() -> None:
    done = process(_QUANTPLAN_COMPLETE="bash_complete", COMP_WORDS="quantplan exp", COMP_CWORD="1")
    assert (done.returncode, done.stdout.strip()) == (0, "plain,explain")


# explain.


def test_explain_a_bundled_model() -> None:
    result = run("explain", "llama-3.1-8b", "--as", "fp8", "--gpu", "a100-80g")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == ("llama-3.1-8b as fp8 (hypothetical) on NVIDIA A100-SXM4-80GB, compute "
                        "capability 8.0, tp 1, bfloat16")
    why = ("starts   W8A16: weights FP8, activations 16-bit, because this GPU (8.0) has no FP8 "
           "tensor cores")
    assert (lines[2], lines[4]) == (f"  vLLM 0.32.0     {why}", f"  SGLang 0.5.22   {why}")


def test_explain_a_config(config: str) -> None:
    result = run("explain", config, "--capability", "8.9")
    assert result.exit_code == 0
    assert "W8A8: weights FP8, activations FP8" in result.output


@pytest.mark.parametrize("arguments, code", [
    (["--capability", "8.9"], 0), (["--capability", "7.0"], 1), (["--capability", "9.0", "--tp",
                                                                  "3"], 1),
    (["--capability", "10.0", "--lib", "flashinfer=unknown"], 0),
    (["--capability", "7.5", "--dtype", "bfloat16"], 1)])
def test_explain_s_exit_code(config: str, arguments: list[str], code: int) -> None:
    """0 also when the answer is conditional; 1 also when it fails only after selection."""
    assert run("explain", config, *arguments).exit_code == code


def test_explain_as_json_is_what_python_says(config: str) -> None:
    result = run("explain", config, "--capability", "9.0", "--tp", "2", "--format", "json",
                 "--engine", "vllm")
    view = json.loads(result.output)
    validate(view, json.loads((SCHEMAS / "explain.v1.json").read_text()))
    assert view == json.loads(json.dumps(explain(config, capability="9.0", tp=2).to_dict()))


@pytest.mark.parametrize("arguments, options", [
    (["--dtype", "float16"], {"dtype": "float16"}),
    (["--kv-cache-dtype", "fp8"], {"kv_cache_dtype": "fp8"}),
    (["--quantization", "fp8"], {"quantization": "fp8"}), (["-q", "fp8"], {"quantization": "fp8"}),
    (["--linear-backend", "marlin"], {"linear_backend": "marlin"}),
    (["--linear-backend", "Flashinfer-Cutlass"], {"linear_backend": "flashinfer_cutlass"}),
    (["--kernel-config", '{"linear_backend_per_quant": {"fp8_w8a8": "marlin"}}'],
     {"linear_backend_per_quant": {"fp8_w8a8": "marlin"}}),
    (["--kernel-config", '{"linear_backend": "marlin"}'], {"linear_backend": "marlin"}),
    (["--kernel-config", '{"linear_backend": "marlin"}', "--linear-backend", "cutlass"],
     {"linear_backend": "cutlass"}),
    (["--allow-deprecated-quantization"], {"allow_deprecated_quantization": True}),
    (["--env", "VLLM_BATCH_INVARIANT=1"], {"env": {"VLLM_BATCH_INVARIANT": "1"}}),
    (["--env", "A=b=c", "--env", "D="], {"env": {"A": "b=c", "D": ""}}),
    (["--lib", "flashinfer=off", "--lib", "humming=on"],
     {"libs": {"flashinfer": False, "humming": True}}),
    (["--lib", "flashinfer=unknown"], {"libs": {"flashinfer": None}}),
    (["--engine", "vllm"], {"engine": "vllm"}),
    (["--engine", "vllm@0.32.0"], {"engine_version": "0.32.0"}),
    (["--engine", "VLLM@0.32.0"], {"engine_version": "0.32.0"}),
    (["--as", "awq"], {"as_format": "awq"})])
def test_every_option_reaches_the_answer(
    config: str, arguments: Sequence[str], options: dict[str, Any]
) -> None:
    engine = () if "--engine" in arguments else ("--engine", "vllm")
    result = run("explain", config, "--capability", "9.0", "--format", "json", *engine, *arguments)
    asked = explain(config, capability="9.0", **options).to_dict()
    assert json.loads(result.output) == json.loads(json.dumps(asked))


def test_two_engines_are_a_list() -> None:
    result = run("explain", "llama-3.1-8b", "--gpu", "4090", "--format", "json", "--engine", "vllm",
                 "--engine", "vllm@0.32.0")
    views = json.loads(result.output)
    assert [view["engine"] for view in views] == [{"name": "vllm", "version": "0.32.0"}] * 2


def test_why_not_and_verbose(config: str) -> None:
    asked = ("explain", config, "--capability", "8.0")
    brief = run(*asked).output
    why = run(*asked, "--why-not", "CutlassFP8ScaledMMLinearKernel").output
    whole = run(*asked, "-v").output
    assert "why not CutlassFP8ScaledMMLinearKernel:\n" in why
    assert "rejected: gpu.capability is 8.0; must be at least 8.9" in why
    assert whole.startswith(brief)
    assert "\nvLLM 0.32.0 trace:\n" in whole
    assert "\nSGLang 0.5.22 trace:\n" in whole
    assert "\ntrace:\n" in run(*asked, "-v", "--engine", "sglang").output


def test_the_help_s_own_names_work() -> None:
    """--as names in the help are formats."""
    text = run("explain", "--help").output
    for name in ("fp8", "fp8-block", "awq", "gptq", "w4a16", "w8a8-int8"):
        assert name in text
        assert run("explain", "llama-3.1-8b", "--gpu", "4090", "--as", name).exit_code == 0


# budget.


@pytest.mark.parametrize("size, code", [("24GiB", 0), ("24 GiB", 0), ("24gb", 0), ("24576MiB", 0),
                                        ("25769803776", 0), ("8GiB", 1)])
def test_budget_s_exit_code_and_sizes(size: str, code: int) -> None:
    result = run("budget", "llama-3.1-8b", "--gpu-mem", size, "--max-model-len", "auto")
    assert result.exit_code == code


@pytest.mark.parametrize("flags, code", [((), 1), (("--max-model-len", "46304"), 0),
                                         (("--max-model-len", "46305"), 1)])
def test_a_request_that_the_kv_cache_does_not_hold_is_refused(
    flags: tuple[str, ...], code: int
) -> None:
    """vllm 0.32.0 v1/core/kv_cache_utils.py:_check_enough_kv_cache_memory raises."""
    result = run("budget", "llama-3.1-8b", "--gpu-mem", "24GiB", *flags)
    assert result.exit_code == code
    assert result.output.startswith("vllm 0.32.0 does not start (KV cache): To serve at least one "
                                    "request with the model's max seq len (") == bool(code)


def test_budget_as_json_is_what_python_says() -> None:
    result = run("budget", "llama-3.1-8b", "--gpu-mem", "24GiB", "--tp", "2", "--format", "json")
    view = json.loads(result.output)
    validate(view, json.loads((SCHEMAS / "budget.v2.json").read_text()))
    asked = budget("llama-3.1-8b", gpu_mem="24GiB", tp=2).to_dict()
    assert view == json.loads(json.dumps(asked))


# What is known.


def test_gpus() -> None:
    result = run("gpus")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 1 + len(all_gpus())


@pytest.mark.parametrize("words, ids", [
    (["rtx", "4090"], {"rtx-4090"}), (["RTX 4090"], {"rtx-4090"}), (["h200"], None)])
def test_gpus_with_words(words: list[str], ids: set[str] | None) -> None:
    listed = {line.split()[0] for line in run("gpus", *words).output.splitlines()[1:]}
    assert listed
    assert ids is None or ids <= listed
    rows = json.loads(run("gpus", *words, "--format", "json").output)
    assert {row["id"] for row in rows} == listed


def test_gpus_that_no_one_knows() -> None:
    """A search without a hit says so; an empty line is no answer."""
    result = run("gpus", "voodoo2")
    assert result.output.strip() != ""


def test_models() -> None:
    result = run("models")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()[1:]] == [
        row["id"] for row in bundled_models()]


def test_lint() -> None:
    result = run("tables", "lint")
    assert (result.exit_code, result.output) == (0, "0 violations\n")


def test_lint_that_finds_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantplan.tables.lint.lint", lambda: ["tables/x.yaml: wrong"])
    result = run("tables", "lint")
    assert (result.exit_code, result.output) == (1, "tables/x.yaml: wrong\n1 violations\n")


def test_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantplan.tables.compiling.write_compiled", lambda: ["a/b", "c"])
    assert run("tables", "compile").output == "compiled a/b\ncompiled c\n"


# In a process of its own.


def test_a_process_answers(config: str) -> None:
    done = process("explain", config, "--capability", "8.0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("explain", config, "--capability", "8.0").output


def test_a_process_that_refuses(config: str) -> None:
    done = process("explain", config, "--capability", "7.0")
    assert (done.returncode, done.stderr) == (1, "")
    assert "does not start: capability gate" in done.stdout


def test_a_reader_that_leaves_early_is_no_refusal() -> None:
    """`quantplan explain ... | head`: exit code 1 would say that the engine refuses."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "quantplan", "explain", "llama-3.1-8b", "--gpu", "4090", "-v"],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_models_as_json() -> None:
    result = run("models", "--format", "json")
    assert [row["id"] for row in json.loads(result.output)] == [
        row["id"] for row in bundled_models()]


def test_budgets_of_both_engines_one_after_the_other() -> None:
    asked = ("budget", "llama-3.1-8b", "--gpu", "h100", "--engine", "vllm", "--engine", "sglang")
    text = run(*asked)
    assert text.exit_code == 0
    assert text.output.index("with vLLM 0.32.0") < text.output.index("on SGLang 0.5.22")
    views = json.loads(run(*asked, "--format", "json").output)
    assert [view["schema"] for view in views] == ["quantplan/budget/2", "quantplan/budget/sglang/1"]
    tight = run("budget", "llama-3.1-70b", "--gpu", "h100", "--engine", "sglang")
    assert tight.exit_code == 1


def test_a_budget_of_a_named_engine_version() -> None:
    wanted = run("budget", "llama-3.1-8b", "--gpu-mem", "24GiB")
    asked = run("budget", "llama-3.1-8b", "--gpu-mem", "24GiB", "--engine", "vllm@0.32.0")
    assert (asked.exit_code, asked.output) == (1, wanted.output)
    with pytest.raises(NotKnownError, match=r"no table for vllm 0\.1"):
        run("budget", "llama-3.1-8b", "--gpu-mem", "24GiB", "--engine", "vllm@0.1")
