"""`quantplan tables`: what its commands print and end with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from quantplan.reports import table_diff_text
from quantplan.tables.errors import NotKnownError, UsageError

from quantplan.cli import quantplan


def run(*arguments: str) -> Result:
    """Return the result of `quantplan tables` with ARGUMENTS; errors of ours are raised."""
    result = CliRunner().invoke(quantplan, ("tables", *arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_diff_tells_the_rows_and_why() -> None:
    """0.33.0 adds torch._scaled_mm at the end of the MXFP8 list."""
    result = run("diff", "vllm@0.32.0", "vllm@0.33.0")
    assert result.exit_code == 0
    head, rest = result.output.split("\n", maxsplit=1)
    assert head.startswith("vllm 0.32.0 -> 0.33.0: ")
    assert ("\n+ families[mxfp8].kernels: TorchMxFp8LinearKernel\n"
            "    0.33.0: torch._scaled_mm is the last of the MXFP8 list  "
            "[model_executor/kernels/linear/__init__.py:_POSSIBLE_MXFP8_KERNELS]\n") in rest


def test_diff_as_json() -> None:
    data = json.loads(run("diff", "vllm@0.33.0", "vllm@0.32.0", "--format", "json").output)
    assert (data["schema"], data["from"], data["to"]) == ("quantplan/tables-diff/1", "0.33.0",
                                                          "0.32.0")
    row = next(d for d in data["differences"] if d["item"] == "TorchMxFp8LinearKernel")
    assert row["kind"] == "removed"


def test_no_version_is_the_default() -> None:
    assert run("diff", "vllm", "vllm@0.32.0").output == "vllm 0.32.0 -> 0.32.0: 0 differences\n"


def test_a_bare_version_is_one_of_vllm() -> None:
    assert run("diff", "0.32.0", "0.33.0").output == run(
        "diff", "vllm@0.32.0", "vllm@0.33.0").output


def test_diff_offers_no_option_that_it_has_not() -> None:
    with pytest.raises(NotKnownError) as raised:
        run("diff", "vllm@0.32.0", "vllm@0.40.0")
    assert str(raised.value) == (
        "no table for vllm 0.40.0; wanted vllm 0.33.0. There are 0.25.1, 0.32.0, "
        "0.33.0: name one.")


@pytest.mark.parametrize("arguments, error, words", [
    (("vllm@0.32.0", "sglang@0.5.22"), UsageError, "two engines; wanted two versions of one"),
    (("vllm@0.32.0", "vllm@0.1"), NotKnownError, "no table for vllm 0.1"),
    (("vllm@", "vllm@0.1"), UsageError, "vllm@; wanted vllm or sglang"),
])
def test_diff_of_what_cannot_be_compared(
    arguments: tuple[str, str], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        run("diff", *arguments)


# The engine's own files.


def engine_files(folder: Path, version: str, text: str) -> str:
    """Write a package vllm with one file, which the tables cite, and return where it lies."""
    (folder / "vllm").mkdir(parents=True)
    (folder / f"vllm-{version}.dist-info").mkdir()
    (folder / "vllm" / "__init__.py").write_text("")
    (folder / "vllm" / "envs.py").write_text(text)
    return str(folder)


FLAG = "VLLM_BATCH_INVARIANT = {}\n"
CITED = "envs.py:VLLM_BATCH_INVARIANT"


def test_lint_against_files_that_lack_what_is_cited(tmp_path: Path) -> None:
    result = run("lint", "--against", engine_files(tmp_path, "0.32.0", FLAG))
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[-1] == f"{len(lines) - 1} violations"
    assert ("envs.py:VLLM_DISABLED_KERNELS: no such symbol in that file; cited by "
            "environment[VLLM_DISABLED_KERNELS].source") in lines
    assert any(line.startswith("config/cache.py:CacheDType: no such file; ") for line in lines)
    assert not any(line.startswith(CITED) for line in lines)


def test_lint_against_files_without_a_version_wants_one(tmp_path: Path) -> None:
    folder = engine_files(tmp_path, "0.32.0", FLAG)
    (tmp_path / "vllm-0.32.0.dist-info").rmdir()
    with pytest.raises(UsageError, match="its version is not known; wanted --engine vllm@VERSION"):
        run("lint", "--against", folder)
    assert run("lint", "--against", folder, "--engine", "vllm@0.32.0").exit_code == 1


def test_lint_sees_which_engine_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang-0.5.22.dist-info").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("")
    lines = run("lint", "--against", str(tmp_path)).output.splitlines()
    assert ("layers/quantization/gguf.py:GGUFConfig: no such file; cited by methods[gguf].source"
            in lines)


def test_lint_against_files_of_no_engine(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no package vllm or sglang"):
        run("lint", "--against", str(tmp_path))


def test_lint_against_a_version_without_a_table(tmp_path: Path) -> None:
    with pytest.raises(NotKnownError, match=r"no table for vllm 0\.1"):
        run("lint", "--against", engine_files(tmp_path, "0.1", FLAG))


@pytest.mark.parametrize("value, code, counts", [
    ("True", 0, "1 cited places: 1 unchanged, 0 changed, 0 moved, 0 gone\n"),
    ("False", 1, "1 cited places: 0 unchanged, 1 changed, 0 moved, 0 gone\nchanged  " + CITED),
])
def test_bump(tmp_path: Path, value: str, code: int, counts: str) -> None:
    old = engine_files(tmp_path / "old", "0.32.0", FLAG.format("True"))
    new = engine_files(tmp_path / "new", "0.34.0", FLAG.format(value))
    result = run("bump", "vllm", "0.32.0", "vllm@0.34.0", "--old", old, "--new", new)
    assert result.exit_code == code
    assert result.output.startswith(f"vllm 0.32.0 -> 0.34.0: {counts}")


def test_bump_with_the_wheels_of_other_versions(tmp_path: Path) -> None:
    old = engine_files(tmp_path / "old", "0.32.0", FLAG)
    with pytest.raises(UsageError, match=r"old is vllm 0\.32\.0; wanted 0\.33\.0"):
        run("bump", "vllm", "0.33.0", "0.34.0", "--old", old, "--new", old)
    with pytest.raises(UsageError, match=r"^sglang@0\.5; wanted a version of vllm"):
        run("bump", "vllm", "0.32.0", "sglang@0.5", "--old", old, "--new", old)


def sglang_files(folder: Path, version: str, **files: str) -> str:
    """Write a package sglang with files of layers/quantization/ and return where it lies."""
    place = folder / "sglang" / "srt" / "layers" / "quantization"
    place.mkdir(parents=True)
    (folder / f"sglang-{version}.dist-info").mkdir()
    (folder / "sglang" / "__init__.py").write_text("")
    for name, text in files.items():
        (place / f"{name}.py").write_text(text)
    return str(folder)


CONFIG = "class Fp8Config:\n    def get_min_capability(self):\n        return {}\n"
FP8 = "layers/quantization/fp8.py:Fp8Config"


@pytest.mark.parametrize("new, code, said", [
    ({"fp8": CONFIG.format(80)}, 0, "unchanged"),
    ({"fp8": CONFIG.format(89)}, 1, f"changed  {FP8}  (cited by methods[fp8].source)"),
    ({"fp8": "", "fp8_config": CONFIG.format(80)}, 1,
     f"moved    {FP8} -> layers/quantization/fp8_config.py:Fp8Config"),
    ({"fp8": ""}, 1, f"gone     {FP8}  (cited by methods[fp8].source)"),
], ids=["unchanged", "changed", "moved", "gone"])
def test_bump_of_sglang(tmp_path: Path, new: dict[str, str], code: int, said: str) -> None:
    """Its sources are relative to sglang/srt."""
    before = sglang_files(tmp_path / "old", "0.5.22", fp8=CONFIG.format(80))
    after = sglang_files(tmp_path / "new", "0.5.24", **new)
    result = run("bump", "sglang", "0.5.22", "0.5.24", "--old", before, "--new", after)
    assert result.exit_code == code
    assert result.output.startswith("sglang 0.5.22 -> 0.5.24: ")
    assert said in result.output


def test_lint_against_sglangs_files(tmp_path: Path) -> None:
    files = sglang_files(tmp_path, "0.5.23", fp8=CONFIG.format(80))
    result = run("lint", "--against", files, "--engine", "sglang")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert not any(line.startswith(f"{FP8}:") for line in lines)
    assert any(line.startswith("layers/quantization/fp8.py:Fp8LinearMethod: no such symbol in that "
                               "file; cited by ") for line in lines)
    assert any(line.startswith("arg_groups/choices.py:QUANTIZATION_CHOICES: no such file; cited by")
               for line in lines)


def test_the_differences_of_sglangs_versions_are_told() -> None:
    result = run("diff", "sglang@0.5.22", "sglang@0.5.23")
    assert result.exit_code == 0
    assert result.output.startswith("sglang 0.5.22 -> 0.5.23: ")
    assert "minimax_m3_nvfp4" in result.output


# JSON by its schema.


def validated(data: Any, name: str) -> None:
    path = Path(table_diff_text.__file__).parent / "schema" / f"{name}.v1.json"
    jsonschema.validate(data, json.loads(path.read_text(encoding="utf-8")))


def test_the_json_of_diff_and_bump_is_by_their_schemas(tmp_path: Path) -> None:
    validated(json.loads(run("diff", "vllm@0.32.0", "vllm@0.33.0", "--format", "json").output),
              "tables-diff")
    old = engine_files(tmp_path / "old", "0.32.0", FLAG.format("True"))
    new = engine_files(tmp_path / "new", "0.34.0", FLAG.format("False"))
    found = run("bump", "vllm", "0.32.0", "0.34.0", "--old", old, "--new", new, "--format", "json")
    validated(json.loads(found.output), "tables-bump")
