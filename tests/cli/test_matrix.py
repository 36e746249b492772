"""`quantplan matrix` and `quantplan.matrix`. The cells are the two engines' own answers
(tests/golden): the table of capability classes that people draw by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from quantplan.tables.errors import UsageError

from quantplan.cli import quantplan

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from quantplan.dispatch.gpu import all_gpus
from quantplan.reports import matrix_view
from quantplan.reports.matrix_text import matrix_text

from quantplan import Matrix, matrix

SCHEMA = Path(matrix_view.__file__).parent / "schema" / "matrix.v1.json"
CLASSES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(quantplan, ("matrix", *arguments))


def of(quant: str, **options: Any) -> Matrix:
    config = {**LLAMA, "quantization_config": quantization(quant)}
    return matrix(config, **{"capabilities": CLASSES, **options})


def linear(found: Matrix) -> dict[str, list[str | None]]:
    """Return engine -> what serves its linear layers per GPU; None where it does not start."""
    told: dict[str, list[str | None]] = {}
    for cell in found.cells:
        words = cell.linear[0].words if cell.starts != "no" else None
        told.setdefault(cell.engine, []).append(words)
    return told


@pytest.mark.parametrize("quant, vllm, sglang", [
    ("fp8-static",
     ["W8A16 Marlin"] * 3 + ["W8A8 CUTLASS"] * 2 + ["W8A8 FlashInfer"] * 2,
     [None] + ["W8A16 Marlin"] * 2 + ["W8A8 CUTLASS"] * 3 + ["W8A8 torch"]),
    ("awq4-g128",
     ["W4A16 Marlin"] * 4 + ["W4A16 Machete"] + ["W4A16 Marlin"] * 2,
     ["W4A16 AWQ dequantize"] + ["W4A16 Marlin"] * 6),
    ("gptq4-g128",
     ["W4A16 Marlin"] * 4 + ["W4A16 Machete"] + ["W4A16 Marlin"] * 2,
     [None] + ["W4A16 Marlin"] * 6)])
def test_the_table_of_capability_classes(
    quant: str, vllm: list[str | None], sglang: list[str | None]
) -> None:
    assert linear(of(quant)) == {"vllm": vllm, "sglang": sglang}


def test_classes_that_are_served_alike_share_a_column() -> None:
    lines = matrix_text(of("gptq4-g128"), 200).splitlines()
    assert lines[2].split() == ["7.5", "8.0", "to", "8.9", "9.0", "10.0", "12.0"]
    assert lines[3].split() == ["vLLM", "0.32.0", "starts"] + ["yes"] * 5
    assert lines[7].split()[:6] == ["SGLang", "0.5.22", "starts", "no", "[1]", "yes"]
    assert lines[-1].startswith(
        "  [1] SGLang 0.5.22 on 7.5: ValueError: Unknown quantization method: gptq. Must be one of")


def test_narrow_lines_make_blocks() -> None:
    text = matrix_text(of("fp8-static"), 60)
    blocks = [block for block in text.split("\n\n") if "vLLM 0.32.0    starts" in block]
    assert len(blocks) > 1
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 60


def test_the_default_is_every_class_of_the_catalogue() -> None:
    found = matrix(LLAMA)
    assert [gpu.capability_text for gpu in found.gpus] == [
        "7.0", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0",
        "12.1"]
    assert {cell.engine for cell in found.cells} == {"vllm", "sglang"}


def test_named_gpus_and_engine_versions() -> None:
    found = matrix(LLAMA, gpus=["a100-80g", "4090"], engines=("vllm@0.33.0",))
    assert [(cell.gpu.id, cell.version) for cell in found.cells] == [
        ("a100-sxm-80gb", "0.33.0"), ("rtx-4090", "0.33.0")]
    heads = matrix_text(found, 200).splitlines()[2:4]
    assert [head.strip() for head in heads] == ["a100-sxm-80gb (8.0)", "rtx-4090 (8.9)"]


def test_what_is_not_known_is_a_cell_of_its_own() -> None:
    found = matrix(LLAMA, capabilities=["9.0"], linear_backend="triton")
    vllm, sglang = found.cells
    assert (sglang.starts, sglang.linear) == ("unknown", ())
    assert sglang.reason == ("--linear-backend with SGLang; wanted flags of SGLang. Drop "
                             "--linear-backend.")
    assert vllm.starts != "unknown"


def test_json_by_its_schema() -> None:
    result = run("llama-3.1-8b", "--as", "awq", "--capability", "7.5", "--capability", "9.0",
                 "--format", "json")
    assert result.exit_code == 0
    view = json.loads(result.output)
    jsonschema.validate(view, json.loads(SCHEMA.read_text()))
    assert [(cell["engine"]["name"], cell["gpu"]["capability"], cell["linear"][0]["kernels"])
            for cell in view["cells"]] == [
        ("vllm", "7.5", ["MarlinLinearKernel"]), ("vllm", "9.0", ["MacheteLinearKernel"]),
        ("sglang", "7.5", ["awq_dequantize"]), ("sglang", "9.0", ["gptq_marlin_gemm"])]


@pytest.mark.parametrize("arguments, code", [
    (["--capability", "9.0"], 0), (["--capability", "7.0"], 1),
    (["--capability", "9.0", "--engine", "sglang", "--linear-backend", "triton"], 4)])
def test_exit_codes(arguments: list[str], code: int) -> None:
    assert run("llama-3.1-8b", "--as", "fp8", *arguments).exit_code == code


def test_gpus_are_lists_in_python() -> None:
    with pytest.raises(UsageError, match="gpus, capabilities and engines, which are lists"):
        matrix(LLAMA, capability="9.0")


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-r1", "gpt-oss-20b"])
def test_gpus_that_share_an_answer_would_have_the_same(model: str) -> None:
    """The catalogue's GPUs at once, against each asked alone."""
    names = [row["id"] for row in all_gpus()][::7]
    together = matrix(model, gpus=names)
    alone = [cell for name in names for cell in matrix(model, gpus=[name]).cells]
    told = {(cell.engine, cell.gpu.id): view(cell) for cell in together.cells}
    assert told == {(cell.engine, cell.gpu.id): view(cell) for cell in alone}


def view(cell: Any) -> tuple[object, ...]:
    return (cell.starts, cell.dtype, cell.reason, [part.words for part in cell.linear],
            [part.words for part in cell.experts], cell.kv_cache, cell.attention)
