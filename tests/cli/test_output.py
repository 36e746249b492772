"""What reaches the terminal, what a shell completes, and how names on the command line resolve."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1]))

from quantplan.dispatch.bundled import bundled_models
from quantplan.dispatch.candidates import kernel_ids, kernel_named
from quantplan.dispatch.formats import format_ids
from quantplan.dispatch.gpu import all_gpus
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import UsageError

from quantplan import completion
from quantplan.cli import quantplan
from quantplan.output import clean, say, wrapped

TABLE = load_engine("vllm", "0.32.0")
ASKED = ("explain", "llama-3.1-8b", "--gpu", "4090")


def run(*arguments: str) -> tuple[Any, str]:
    """Return the error that a command raises, if any, and what it printed."""
    result = CliRunner().invoke(quantplan, [*ASKED, *arguments])
    return result.exception, result.output


# clean() and say().


@pytest.mark.parametrize("text, shown", [
    ("plain text", "plain text"), ("", ""), ("größe 模型", "größe 模型"),
    ("\x1b[31mred", "\\x1b[31mred"), ("a\tb\r", "a\\tb\\r"), ("a\nb", "a\\nb"),
    ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"), ("\u202eabc", "\\u202eabc"), ("\u2028", "\\u2028"),
    ("\U000e0001", "\\U000e0001")])
def test_clean(text: str, shown: str) -> None:
    """ESC starts a terminal sequence, U+202E turns the direction of a line."""
    assert clean(text) == shown
    assert clean(text).isprintable()


@pytest.mark.parametrize("text, printed", [
    ("one", "one\n"), ("one\n", "one\n"), ("one\n\n", "one\n\n"), ("a\n\x1b[2Jb", "a\n\\x1b[2Jb\n"),
    ("", "\n"), ("a\r\nb", "a\\r\nb\n")])
def test_say(text: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines stay lines; anything else that moves the cursor is escaped."""
    say(text)
    assert capsys.readouterr() == (printed, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_say_to_a_full_disk() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        with pytest.raises(UsageError) as raised:
            say("text")
    assert str(raised.value) == "the output cannot be written; found No space left on device"


# wrapped().


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes stdout a terminal of so many columns."""
    def set_columns(count: int) -> None:
        monkeypatch.setattr(sys, "stdout", Terminal())
        monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((count, 24)))

    return set_columns


LONG = "  item: " + "word " * 30 + "end"


def test_only_a_terminal_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "60")
    assert wrapped(LONG) == LONG


@pytest.mark.parametrize("count, width", [(80, 80), (60, 60), (20, 60)])
def test_long_lines_are_wrapped_at_words(columns: Any, count: int, width: int) -> None:
    """Later lines stand four columns further in; a terminal narrower than 60 wraps by itself."""
    columns(count)
    first, *rest = wrapped(LONG).split("\n")
    assert first.startswith("  item: word ")
    assert rest and all(line.startswith("      ") and line[6] != " " for line in rest)
    assert all(width - 5 <= len(line) <= width for line in (first, *rest[:-1]))
    assert " ".join(line.strip() for line in (first, *rest)) == LONG.strip()


def test_short_lines_long_words_and_hyphens_stay(columns: Any) -> None:
    columns(60)
    short = "a  b\n\n    c-d   " + "x" * 40
    assert wrapped(short) == short
    word = "model.layers.0.self_attn.qkv_proj/" * 3
    assert wrapped(f"see {word}") == f"see\n    {word}"
    flags = "pass " + "--gpu-memory-utilization " * 4
    assert "".join(wrapped(flags)).count("--gpu-memory-utilization") == 4


def test_the_width_is_the_terminal_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """shutil.get_terminal_size takes COLUMNS before it asks the terminal."""
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "70")
    assert max(len(line) for line in wrapped(LONG).split("\n")) in range(66, 71)


# What a shell completes.


def complete(function: Any, begun: str) -> list[str]:
    found: list[str] = function(None, None, begun)
    return found


def test_gpu_names() -> None:
    assert complete(completion.gpu_names, "a100-pcie-4") == ["a100-pcie-40gb"]
    names = {name for row in all_gpus() for name in (row["id"], *row["aliases"])}
    assert complete(completion.gpu_names, "") == sorted(names)
    assert complete(completion.gpu_names, "H1") == complete(completion.gpu_names, "h1") != []
    assert complete(completion.gpu_names, "no-such") == []


def test_model_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama-3.1-8b-mine").mkdir()
    (tmp_path / "llama-3.1-8b-mine" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    bundled = [row["id"] for row in bundled_models() if row["id"].startswith("llama-3.1-8b")]
    assert complete(completion.model_names, "llama-3.1-8b") == sorted(
        [*bundled, "llama-3.1-8b-mine"])
    assert complete(completion.model_names, "llama-3.1-8b-mine/c") == [
        os.path.join("llama-3.1-8b-mine", "config.json")]
    inside = os.path.join(str(tmp_path), "lla")
    assert complete(completion.model_names, inside) == [str(tmp_path / "llama-3.1-8b-mine")]
    assert complete(completion.model_names, "no/such/folder/") == []


def test_format_names() -> None:
    assert complete(completion.format_names, "") == sorted(format_ids())
    assert complete(completion.format_names, "fp8-b") == ["fp8-block", "fp8-block128"]
    assert complete(completion.format_names, "x") == []


def test_kernel_names() -> None:
    assert complete(completion.kernel_names, "mache") == ["MacheteLinearKernel"]
    assert complete(completion.kernel_names, "Marlin") == [
        "MarlinExperts", "MarlinFP8ScaledMMLinearKernel", "MarlinLinearKernel",
        "MarlinMxFp4LinearKernel", "MarlinMxfp8LinearKernel", "MarlinNvFp4LinearKernel"]
    assert complete(completion.kernel_names, "") == sorted(kernel_ids(TABLE))


# kernel_named().


@pytest.mark.parametrize("text, name", [
    ("MacheteLinearKernel", "MacheteLinearKernel"), ("machetelinearkernel", "MacheteLinearKernel"),
    ("machete", "MacheteLinearKernel"), ("MACH", "MacheteLinearKernel"),
    ("MarlinLinearKernel", "MarlinLinearKernel"), ("marlinl", "MarlinLinearKernel"),
    ("flash_attn", "FLASH_ATTN"), ("FLASHINFER", "FLASHINFER"), ("turbo", "TURBOQUANT"),
    ("triton_ml", "TRITON_MLA"), ("triton_attn", "TRITON_ATTN")])
def test_a_kernel_by_its_name_or_a_beginning_of_its_own(text: str, name: str) -> None:
    """FLASHINFER is a backend's whole name and the beginning of several kernels'."""
    assert kernel_named(TABLE, text) == name


def test_a_beginning_of_several_kernels_names_them() -> None:
    with pytest.raises(UsageError) as raised:
        kernel_named(TABLE, "Marlin")
    assert str(raised.value) == (
        "--why-not Marlin; wanted a kernel class, an attention backend or an experts class. "
        "Did you mean MarlinFP8ScaledMMLinearKernel, MarlinLinearKernel, MarlinMxfp8LinearKernel, "
        "MarlinMxFp4LinearKernel?")


def test_at_most_four_are_named() -> None:
    with pytest.raises(UsageError) as raised:
        kernel_named(TABLE, "FlashInferF")
    assert raised.value.hint is not None
    assert len(raised.value.hint.split(", ")) <= 4
    assert all("FlashInferF" in name for name in raised.value.hint[len("Did you mean "):].split(
        ", "))


@pytest.mark.parametrize("text, hint", [
    ("MachetLinearKernel", "Did you mean MacheteLinearKernel"),
    ("qqq", "`quantplan explain MODEL -v` lists the candidates."),
    ("FLASH_ATN", "Did you mean FLASH_ATTN")])
def test_an_unknown_kernel_suggests_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        kernel_named(TABLE, text)
    assert raised.value.hint is not None
    assert raised.value.hint.startswith(hint)


# The options.


def test_why_not_resolves_a_beginning() -> None:
    error, output = run("--why-not", "machete")
    assert error is None or isinstance(error, SystemExit)
    assert "MacheteLinearKernel" in output


def test_why_not_is_for_text() -> None:
    error, _ = run("--why-not", "machete", "--format", "json")
    assert isinstance(error, UsageError)
    assert str(error) == ("--why-not goes with --format text only. The JSON has every candidate of "
                          "every layer.")


@pytest.mark.parametrize("option, first, second, told", [
    ("--lib", "flashinfer=on", "flashinfer=off", "--lib flashinfer is given twice; wanted one "
                                                 "value; found on and off"),
    ("--env", "A=1", "A=2", "--env A is given twice; wanted one value; found 1 and 2")])
def test_two_values_of_one_name(option: str, first: str, second: str, told: str) -> None:
    error, _ = run(option, first, option, second)
    assert isinstance(error, UsageError)
    assert str(error) == told


def test_the_same_value_twice_is_one() -> None:
    once = run("--lib", "flashinfer=off")
    assert run("--lib", "flashinfer=off", "--lib", "flashinfer=off")[1] == once[1]
    assert "not usable" not in once[1]


@pytest.mark.parametrize("arguments, code", [
    (["explain", "llama-3.1-8b", "--gpu", "h100"], 0), (["gpus"], 0),
    (["explain", "nope", "--gpu", "h100", "--format", "json"], 2)])
def test_a_closed_stdout_leaves_the_exit_code(arguments: list[str], code: int) -> None:
    done = subprocess.run(f"{shlex.quote(sys.executable)} -m quantplan {shlex.join(arguments)} >&-",
                          shell=True, check=False, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
