"""The command line on its bad days: one line on stderr, a documented exit code, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from quantplan.reports import explain_view
from quantplan.tables.errors import TableError

from quantplan import cli

Captured = tuple[int, str, str]
SCHEMAS = Path(explain_view.__file__).parent / "schema"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs main() and returns exit code, stdout and stderr."""
    def call(*arguments: str) -> Captured:
        monkeypatch.setattr(sys, "argv", ["quantplan", *arguments])
        with pytest.raises(SystemExit) as raised:
            cli.main()
        out, err = capsys.readouterr()
        assert isinstance(raised.value.code, int)
        return raised.value.code, out, err

    return call


def one_line(captured: Captured, code: int, kind: str) -> str:
    """Return the one line of a refusal of CODE and KIND, without its head."""
    found, out, err = captured
    assert (found, out) == (code, "")
    assert err.endswith("\n")
    line = err[:-1]
    assert line.isprintable(), line
    assert "Traceback" not in line
    head = f"error: {kind}: "
    assert line.startswith(head)
    return line[len(head):]


def write(folder: Path, config: Any) -> str:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return str(path)


GPU = ("--gpu", "4090")
MODEL = "llama-3.1-8b"


# 2: usage.


@pytest.mark.parametrize("arguments, parts", [
    (["explan", MODEL], ["No such command 'explan'", "explain"]),
    (["explain", MODEL, "--gpuu", "4090"], ["No such option '--gpuu'", "--gpu"]),
    (["explain", MODEL, *GPU, "--tpp", "2"], ["No such option '--tpp'", "--tp"]),
    (["explain"], ["Missing argument 'MODEL'"]),
    (["explain", MODEL, "extra", *GPU], ["unexpected extra argument"]),
    (["explain", MODEL, *GPU, "--tp", "0"], ["--tp", "0", "1024"]),
    (["explain", MODEL, *GPU, "--tp", "two"], ["--tp", "'two'"]),
    (["explain", MODEL, *GPU, "--tp", "1e9"], ["--tp", "'1e9'"]),
    (["explain", MODEL, *GPU, "--format", "xml"], ["--format", "'text', 'json'"]),
    (["explain", MODEL, *GPU, "--capability", "8.9"], ["--gpu and --capability name two GPUs"]),
    (["explain", MODEL, "--capability", "8"], ["'8' is not a compute capability", "6.0 to 12.1"]),
    (["explain", MODEL, "--capability", "eight"], ["'eight' is not a compute capability"]),
    (["explain", MODEL, "--gpu", "4091"], ["no GPU is called '4091'", "Did you mean", "rtx-4090",
                                           "`quantplan gpus` lists them"]),
    (["explain", MODEL, "--gpu", ""], ["no GPU is called ''"]),
    (["explain", MODEL, "--gpu", "x" * 200], ["cannot be one", "80 characters"]),
    (["explain", MODEL, *GPU, "--engine", "trt"], ["--engine trt", "wanted vllm or sglang, with"]),
    (["explain", MODEL, *GPU, "--engine", ""], ["--engine", "wanted vllm or sglang, with"]),
    (["explain", MODEL, *GPU, "--lib", "flashinfer"], ["--lib flashinfer", "NAME=on|off|unknown"]),
    (["explain", MODEL, *GPU, "--lib", "flashinfer=yes"], ["--lib flashinfer=yes",
                                                           "on, off, unknown, installed"]),
    (["explain", MODEL, *GPU, "--lib", "flashinfr=off"], ["unknown library 'flashinfr'",
                                                          "flashinfer"]),
    (["explain", MODEL, *GPU, "--lib", "deepgemm=off"], ["Did you mean deep_gemm"]),
    (["explain", MODEL, *GPU, "--linear-backend", "cutlas"], ["Did you mean cutlass"]),
    (["explain", MODEL, *GPU, "--moe-backend", "marlinn"], ["Did you mean marlin?"]),
    (["explain", MODEL, *GPU, "--kv-cache-dtype", "fp8_e4m"], ["Did you mean fp8_e4m3"]),
    (["explain", MODEL, *GPU, "--dtype", "bflot16"], ["Did you mean bfloat16"]),
    (["explain", MODEL, *GPU, "--env", "X"], ["--env X", "KEY=VALUE"]),
    (["explain", MODEL, *GPU, "--env", "=1"], ["--env =1", "KEY=VALUE"]),
    (["explain", MODEL, *GPU, "--dtype", "int8"], ["--dtype int8", "bfloat16"]),
    (["explain", MODEL, *GPU, "--kv-cache-dtype", "int8"], ["--kv-cache-dtype int8", "fp8_e4m3"]),
    (["explain", MODEL, *GPU, "--linear-backend", "cuda"], ["--linear-backend cuda", "cutlass"]),
    (["explain", MODEL, *GPU, "--kernel-config", "x"], ["--kernel-config x", "a JSON object"]),
    (["explain", MODEL, *GPU, "--kernel-config", '{"enable_jit_warmup": true}'],
     ["--kernel-config: enable_jit_warmup", "linear_backend_per_quant"]),
    (["explain", MODEL, *GPU, "--as", "fp9"], ["unknown weight format 'fp9'", "Did you mean",
                                               "fp8"]),
    (["explain", MODEL, *GPU, "--revision", "main"], ["revision", "a hub id"]),
    (["explain", "llama-3.1-8", *GPU], ['"llama-3.1-8" is not a model', "Did you mean",
                                        "llama-3.1-8b"]),
    (["explain", "", *GPU], ["the model is not usable"]),
    (["budget", MODEL, "--gpu-mem", "24"], ["--gpu-mem", "24GiB", "'24'"]),
    (["budget", MODEL, "--gpu-mem", "lots"], ["--gpu-mem", "24GiB", "'lots'"]),
    (["budget", MODEL, "--gpu-mem", "-24GiB"], ["--gpu-mem", "'-24GiB'"]),
    (["budget", MODEL, "--gpu-mem", "24GiB", "--gpu-memory-utilization", "9"],
     ["--gpu-memory-utilization", "9.0"]),
    (["completion", "tcsh"], ["'tcsh'", "bash"]),
    (["tables", "lnt"], ["No such command 'lnt'"]),
])
def test_usage(run: Any, arguments: list[str], parts: list[str]) -> None:
    line = one_line(run(*arguments), 2, "usage")
    for part in parts:
        assert part in line


@pytest.mark.parametrize("arguments", [
    ["explan"], ["explain"], ["explain", MODEL, *GPU, "--tp", "0"], ["explain", MODEL, "--gpuu"],
    ["explain", MODEL, *GPU, "--format", "xml"], ["explain", MODEL, "a", "b"]])
def test_usage_is_punctuated_once(run: Any, arguments: list[str]) -> None:
    line = one_line(run(*arguments), 2, "usage")
    assert ".." not in line
    assert "?." not in line
    assert line.endswith(" See --help.")


def test_no_gpu_here_is_said_with_a_way_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, err = run("explain", MODEL)
    assert (code, out) == (2, "")
    assert "--gpu 4090" in err
    assert "--capability 8.9" in err
    assert "--gpu-mem" not in err
    code, _, err = run("budget", MODEL)
    assert code == 2
    assert "; wanted --gpu-mem 24GiB, or a GPU. " in err


# As JSON.


@pytest.mark.parametrize("arguments, code", [
    (["--gpu", "4091"], 2), (["--tpp", "x"], 2), ([*GPU, "--engine", "vllm@9"], 4)])
@pytest.mark.parametrize("asked", [["--format", "json"], ["--format=json"]])
def test_a_refusal_is_json_too(
    run: Any, arguments: list[str], code: int, asked: list[str]
) -> None:
    found, out, err = run("explain", MODEL, *asked, *arguments)
    told = json.loads(out)
    jsonschema.validate(told, json.loads((SCHEMAS / "error.v1.json").read_text(encoding="utf-8")))
    assert (found, told["error"]["code"]) == (code, code)
    assert err.startswith(f"error: {told['error']['kind']}: {told['error']['what']}")


def test_a_checkpoint_s_refusal_is_json_too(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("explain", write(tmp_path, "[]"), *GPU, "--format", "json")
    assert (code, json.loads(out)["error"]["kind"]) == (3, "bad-checkpoint")


def test_the_engine_s_long_spellings(run: Any) -> None:
    asked = run("explain", MODEL, *GPU, "--tensor-parallel-size", "4", "--data-parallel-size", "2")
    assert asked == run("explain", MODEL, *GPU, "--tp", "4", "--dp", "2")
    assert asked[0] == 0


# 3: the checkpoint.


@pytest.mark.parametrize("config, parts", [
    ("{", ["config.json is not JSON"]), ("[]", ["config.json is not an object"]),
    ({**LLAMA, "hidden_size": "big"}, ["hidden_size", '"big"']),
    ({**LLAMA, "quantization_config": 3}, ["quantization_config", "an object"]),
    ({**LLAMA, "quantization_config": {"quant_method": 3}}, ["quant_method", "text"]),
    ({**LLAMA, "quantization_config": quantization("ct-fp8-dynamic", ignore=["re:("])},
     ["'('", "a regular expression"]),
    ({**LLAMA, "vocab_size": None}, ["vocab_size"])])
def test_bad_checkpoints(run: Any, tmp_path: Path, config: Any, parts: list[str]) -> None:
    line = one_line(run("explain", write(tmp_path, config), *GPU), 3, "bad-checkpoint")
    for part in parts:
        assert part in line


@pytest.mark.parametrize("path", ["nowhere/at/all/", "./gone", "gone.json", "~nobody/model/"])
def test_a_missing_path(run: Any, path: str) -> None:
    assert "does not exist" in one_line(run("explain", path, *GPU), 3, "bad-checkpoint")


def test_control_characters_of_a_name_do_not_reach_the_terminal(run: Any, tmp_path: Path) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "x\u001b[2Jy\n"}}
    code, out, _ = run("explain", write(tmp_path, config), *GPU)
    assert code == 1
    assert "\u001b" not in out


@pytest.mark.parametrize("field", ["model_type", "hidden_act"])
def test_control_characters_of_a_config_do_not_reach_the_terminal(
    run: Any, tmp_path: Path, field: str
) -> None:
    code, out, err = run("explain", write(tmp_path, {**LLAMA, field: "x\u001b[2Jy"}), *GPU)
    assert code in (0, 1, 3)
    assert "\u001b" not in out + err


def test_control_characters_of_a_folder_s_name(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a\u001b[31mb"
    folder.mkdir()
    write(folder, LLAMA)
    code, out, _ = run("explain", str(folder), *GPU)
    assert code == 0
    assert "\u001b" not in out


# 4: not known.


@pytest.mark.parametrize("arguments, parts", [
    (["--engine", "vllm@0.32.5"], ["no table for vllm 0.32.5", "wanted vllm 0.32.0 or vllm 0.33.0",
                                   "--assume-nearest"]),
    (["--engine", "vllm@banana", "--assume-nearest"],
     ["no table for vllm banana", "Name one of those versions."]),
    (["--engine", "vllm@banana"], ["no table for vllm banana", "vllm 0.32.0"]),
    (["--engine", "sglang@9.9.9"], ["no table for sglang 9.9.9"]),
    (["--attention-backend", "ROCM_ATTN"], ["--attention-backend ROCM_ATTN",
                                            "wanted one of FLASH_ATTN, "])])
def test_not_known(run: Any, arguments: list[str], parts: list[str]) -> None:
    line = one_line(run("explain", MODEL, *GPU, *arguments), 4, "not-known")
    for part in parts:
        assert part in line


@pytest.mark.parametrize("arguments, kind, code, words", [
    (["explain", MODEL, *GPU, "--engine", "vllm", "--fp8-gemm-backend", "triton"], "usage", 2,
     "--fp8-gemm-backend with vLLM; wanted flags of vLLM"),
    (["explain", MODEL, *GPU, "--engine", "vllm", "--fp4-gemm-backend", "marlin"], "usage", 2,
     "--fp4-gemm-backend with vLLM; wanted flags of vLLM"),
    (["explain", MODEL, *GPU, "--engine", "vllm", "--page-size", "16"], "usage", 2,
     "--page-size with vLLM; wanted flags of vLLM"),
    (["explain", MODEL, *GPU, "--engine", "sglang", "--fp4-gemm-backend", "marln"], "usage", 2,
     "--fp4-gemm-backend marln; wanted one of auto"),
    (["explain", MODEL, *GPU, "--engine", "sglang", "--linear-backend", "triton"], "usage", 2,
     "--linear-backend with SGLang; wanted flags of SGLang"),
    (["explain", MODEL, *GPU, "--engine", "sglang", "--fp8-gemm-backend", "tritn"], "usage", 2,
     "--fp8-gemm-backend tritn; wanted one of auto"),
    (["budget", MODEL, "--gpu-mem", "24GiB", "--engine", "sglang", "--max-num-seqs", "8"], "usage",
     2, "--max-num-seqs with SGLang; wanted flags of SGLang"),
    (["budget", MODEL, "--gpu-mem", "24GiB", "--max-total-tokens", "8"], "usage", 2,
     "--max-total-tokens with vLLM; wanted flags of vLLM"),
])
def test_what_one_engine_has_and_the_other_has_not(
    run: Any, arguments: list[str], kind: str, code: int, words: str
) -> None:
    assert one_line(run(*arguments), code, kind).startswith(words)


def test_an_unknown_family_is_named(run: Any, tmp_path: Path) -> None:
    path = write(tmp_path, {**LLAMA, "architectures": ["HrmTextForCausalLM"]})
    line = one_line(run("explain", path, *GPU), 4, "not-known")
    assert "no family row for the architecture HrmTextForCausalLM" in line


def test_a_refusal_of_one_engine_prints_nothing_of_another(run: Any) -> None:
    """A half-printed answer on stdout with an error on stderr is neither."""
    captured = run("explain", MODEL, *GPU, "--engine", "vllm", "--engine", "vllm@0.1")
    one_line(captured, 4, "not-known")


# 5: our bug.


def boom(*_: Any, **__: Any) -> Any:
    raise KeyError("a\nfact")


def test_an_internal_error_is_one_line_that_names_the_place(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUANTPLAN_DEBUG", raising=False)
    monkeypatch.setattr("quantplan.dispatch.answers.resolve", boom)
    line = one_line(run("explain", MODEL, *GPU), 5, "internal")
    assert line.startswith("KeyError at test_errors.py:")
    assert line.endswith("This is a bug of quantplan; QUANTPLAN_DEBUG=1 shows where.")


def test_debug_shows_the_traceback(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTPLAN_DEBUG", "1")
    monkeypatch.setattr("quantplan.dispatch.answers.resolve", boom)
    code, out, err = run("explain", MODEL, *GPU)
    assert (code, out) == (5, "")
    assert err.startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1].startswith("error: internal: KeyError at ")


def test_a_bad_table_is_our_bug(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(*_: Any) -> Any:
        raise TableError("tables/x.yaml: row: wrong")

    monkeypatch.setattr("quantplan.engines.open_table", bad)
    assert one_line(run("explain", MODEL, *GPU), 5, "bad-table") == "tables/x.yaml: row: wrong"


def test_an_interrupt(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("quantplan.dispatch.answers.resolve", interrupt)
    code, out, err = run("explain", MODEL, *GPU)
    assert (code, out, err.strip()) == (130, "", "quantplan: interrupted")


# In a process of its own.


@pytest.mark.parametrize("arguments, code", [
    (["explain", MODEL, *GPU, "--tpp", "2"], 2), (["explain", "./gone", *GPU], 3),
    (["explain", MODEL, *GPU, "--engine", "vllm@0.1"], 4)])
def test_a_process_ends_with_one_line(arguments: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "quantplan", *arguments], capture_output=True,
                          text=True, check=False, timeout=60, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == 1
