"""`quantplan verify`: its help, its refusals, its exit codes, and one run of a real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))

from engine_answers import FAKE
from quantplan.dispatch.gpu_probe import make_probe
from quantplan.dispatch.nvml import Machine
from quantplan.tables.errors import NotKnownError, UsageError

from quantplan import verify
from quantplan.cli import quantplan
from quantplan.oracle import verification
from quantplan.oracle.engine_process import CannotAskError, EngineProcess, Where


def engine_at(variables: str, engine: str) -> Where:
    """Return where two environment variables say that an engine is."""
    paths = os.environ.get(f"{variables}_PATH", "").split(os.pathsep)
    return Where(os.environ.get(f"{variables}_PYTHON", sys.executable),
                 tuple(filter(None, paths)), engine=engine)


ENGINES = {"vllm": engine_at("QUANTPLAN_ENGINE", "vllm"),
           "sglang": engine_at("QUANTPLAN_SGLANG", "sglang")}
"""The engines that the last test asks, where there are any."""


def run(*arguments: str) -> Result:
    """Return the result of `quantplan verify ARGUMENTS`; its errors are raised."""
    result = CliRunner().invoke(quantplan, ["verify", *arguments], standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantplan.oracle.verification.Where", partial(Where, worker=FAKE))


def case_file(tmp_path: Path, *answers: object, **fields: object) -> str:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(json.dumps(
        {"id": f"case-{number}", "config": {"architectures": ["NoSuchModel"], "fake": answer},
         "capability": 89, **fields}) for number, answer in enumerate(answers)))
    return str(path)


UNTOLD = {"outcome": "untold", "reason": "no"}


def test_the_help_says_what_it_does_and_how_it_ends() -> None:
    text = run("--help").output
    assert "Usage: quantplan verify [OPTIONS] [MODEL]" in text
    words = " ".join(text.split())
    for part in ("--grid N", "--seed INTEGER", "--python PATH", "--engine-path DIR", "--jobs",
                 "Exit codes: 0 every answer that could be compared is the engine's; "
                 "1 disagreements; 2 usage; 3 bad checkpoint; 4 could not tell"):
        assert part in words


@pytest.mark.parametrize("arguments, said", [
    (["--grid", "3", "--only", "x"],
     "there is no case to ask; wanted cases of emulated machines, or cases of this one"),
    (["--grid", "3", "--engine", "vllm@0.31.0"],
     "vllm 0.31.0; wanted the version that is installed; found 0.32.0"),
])
@pytest.mark.usefixtures("worker")
def test_what_the_engine_cannot_be_asked_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        run(*arguments)
    assert str(raised.value) == said


@pytest.mark.parametrize("arguments, said", [
    ([], "what to verify; wanted one of MODEL, --cases FILE and --grid N"),
    (["qwen2.5-0.5b", "--grid", "3"],
     "what to verify; wanted one of MODEL, --cases FILE and --grid N"),
    (["--cases", "no.jsonl"],
     "--cases no.jsonl; wanted a JSON-lines file; found No such file or directory"),
    (["qwen2.5-0.5b", "--engine-path", "no/folder"],
     "--engine-path no/folder; wanted a folder; found nothing there"),
    (["--grid", "3", "--tp", "2"],
     "flags without a model; wanted none. Generated cases have flags of their own."),
    (["--grid", "3", "--env", "A=1"],
     "flags without a model; wanted none. Generated cases have flags of their own."),
    (["qwen2.5-0.5b", "--lib", "flashinfer=off"],
     "libraries of this machine; wanted none: the engine finds them itself. With a capability a "
     "machine with these libraries is emulated."),
    (["--grid", "3", "--engine", "trt"],
     "--engine trt; wanted vllm or sglang, with @VERSION if needed"),
    (["qwen2.5-0.5b", "--capability", "x"], "'x' is not a compute capability; wanted 6.0 to 12.1, "
     "such as 8.9 or 89. `quantplan gpus` shows the capability of every GPU it knows."),
])
def test_what_is_no_question_is_refused_before_an_engine_is_looked_for(
    arguments: list[str], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        run(*arguments, "--python", "/nowhere/python")
    assert str(raised.value) == said


@pytest.mark.usefixtures("worker")
def test_without_a_gpu_a_capability_is_wanted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "probe_gpus", lambda: make_probe(Machine("570.86"), {}))
    with pytest.raises(NotKnownError) as raised:
        run("qwen2.5-0.5b")
    assert (raised.value.exit_code, str(raised.value)) == (
        4, "no GPU to ask the engine on: the NVIDIA driver runs but finds no GPU; wanted "
        "--capability, such as 8.9. It emulates an NVIDIA machine and needs no GPU.")


def test_without_an_engine_it_could_not_tell() -> None:
    with pytest.raises(NotKnownError) as raised:
        run("--grid", "1", "--python", "/nowhere/python")
    assert (raised.value.exit_code, str(raised.value)) == (
        4, "/nowhere/python cannot be run: No such file or directory. --python names the "
        "interpreter of an environment that has the engine, --engine-path a folder that holds it.")


@pytest.mark.usefixtures("worker")
def test_sglang_is_asked_on_emulated_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VERSION", "0.5.22")
    result = run("--grid", "5", "--engine", "sglang", "--format", "json")
    assert json.loads(result.output)["engine"] == {
        "name": "sglang", "version": "0.5.22", "table": "0.5.22", "python": sys.executable}
    with pytest.raises(NotKnownError, match=r"how to ask sglang on this machine's own GPU; wanted "
                       r"--capability, such as 8\.9"):
        run("qwen2.5-0.5b", "--engine", "sglang")


def test_flags_of_the_other_engine_are_refused() -> None:
    with pytest.raises(UsageError, match=r"option 'linear_backend'; wanted one of tp, "):
        verify("qwen2.5-0.5b", engine="sglang", linear_backend="marlin")
    with pytest.raises(UsageError, match=r"option 'fp8_gemm_backend'; wanted one of tp, "):
        verify("qwen2.5-0.5b", fp8_gemm_backend="triton")


@pytest.mark.usefixtures("worker")
def test_nothing_to_compare_ends_with_4(tmp_path: Path) -> None:
    result = run("--cases", case_file(tmp_path, UNTOLD, UNTOLD), "--format", "json")
    assert result.exit_code == 4
    found = json.loads(result.output)
    assert found["totals"] == {"agree": 0, "refused": 0, "explained": 0, "disagree": 0, "gap": 0,
                               "untold": 2}


@pytest.mark.usefixtures("worker")
def test_only_asks_for_less(tmp_path: Path) -> None:
    result = run("--cases", case_file(tmp_path, UNTOLD, UNTOLD), "--only", "-1", "--format", "json")
    assert [row["example"] for row in json.loads(result.output)["untold"]] == ["case-1"]


@pytest.mark.usefixtures("worker")
def test_generated_cases_of_some_capabilities() -> None:
    """The fake worker has no answers; every case is asked, and none is compared."""
    result = run("--grid", "5", "--capability", "8.9", "--capability", "90", "--format", "json")
    found = json.loads(result.output)
    assert (result.exit_code, found["cases"], found["totals"]["untold"]) == (4, 5, 5)


@pytest.mark.usefixtures("worker")
def test_a_version_without_a_table_is_compared_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_VERSION", "0.32.7")
    found = json.loads(run("--cases", case_file(tmp_path, UNTOLD), "--format", "json").output)
    assert (found["engine"]["version"], found["engine"]["table"]) == ("0.32.7", "0.32.0")


@pytest.mark.usefixtures("worker")
def test_from_python_with_the_same_options() -> None:
    found = verify(grid=3, seed=2, capabilities=["8.9"])
    assert [verdict.case.id for verdict in found.verdicts] == ["2/0", "2/1", "2/2"]
    assert found.to_dict()["totals"]["untold"] == 3
    with pytest.raises(UsageError, match=r"option 'tpp'; wanted one of tp, "):
        verify("qwen2.5-0.5b", tpp=2)


def no_engine(engine: str) -> str | None:
    """Return why there is no engine to ask, or None."""
    process = EngineProcess(ENGINES[engine])
    try:
        process.start(only_version=True)
    except CannotAskError as error:
        return str(error)
    finally:
        process.close()
    return None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("model, options", [
    ("llama-3.1-8b", ["--as", "fp8", "--tp", "2"]), ("qwen2.5-7b", ["--as", "awq"])])
def test_the_real_engine_answers_as_we_do(engine: str, model: str, options: list[str]) -> None:
    """Every capability with kernels of its own; needs the engine (QUANTPLAN_ENGINE_PYTHON and
    QUANTPLAN_ENGINE_PATH name another vLLM than this interpreter's, QUANTPLAN_SGLANG_PYTHON and
    QUANTPLAN_SGLANG_PATH an SGLang)."""
    missing = no_engine(engine)
    if missing:
        pytest.skip(missing)
    where = ENGINES[engine]
    paths = [part for path in where.paths for part in ("--engine-path", path)]
    done = subprocess.run(
        [sys.executable, "-m", "quantplan", "verify", model, *options, "--engine", engine,
         "--python", where.python, *paths, "--format", "json",
         *(part for capability in ("7.5", "8.9", "9.0", "10.0")
           for part in ("--capability", capability))],
        capture_output=True, text=True, timeout=600, check=False)
    found = json.loads(done.stdout)
    assert found["disagreements"] == []
    assert (done.returncode, found["totals"]["agree"]) == (0, 4)
