"""Names of tuned files: each is one that a kernel can ask for, and one that the wheel has."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from quantplan.tables.engine_source import EngineSource
from quantplan.tables.load import read_table
from quantplan.tables.tuned_rows import (
    tuned_name,
    tuned_names_are_asked_for,
    wrong_tuned_files,
)

FOLDER = "model_executor/layers/fused_moe/configs"
BLOCK = "NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128]"
NAME = f"E=8,N=2048,device_name={BLOCK}.json"


def table(**files: Any) -> dict[str, Any]:
    """Return the experts' row of 0.32.0 alone, with other files."""
    whole = read_table("engines/vllm/0.32.0")
    row = deepcopy(next(r for r in whole["tuned_configs"] if r["id"] == "experts"))
    row["files"] = files.get("files", {BLOCK: [[8, 2048]]})
    return {**whole, "tuned_configs": [row]}


@pytest.mark.parametrize(("version", "experts", "blocks"), [
    ("0.25.1", 0, 0), ("0.32.0", 250, 103), ("0.33.0", 251, 103)])
def test_the_wheels_have_so_many_files_that_are_read(
    version: str, experts: int, blocks: int
) -> None:
    """Counted in the wheels: NVIDIA's, without those for bf16, float8 and int8_w8a8."""
    counts = {row["id"]: sum(map(len, row["files"].values()))
              for row in read_table(f"engines/vllm/{version}")["tuned_configs"]}
    assert (counts.get("experts", 0), counts.get("fp8_blocks", 0)) == (experts, blocks)


def test_the_name_of_a_file() -> None:
    (row,) = table()["tuned_configs"]
    assert tuned_name(row, (8, 2048), BLOCK) == NAME


@pytest.mark.parametrize(("files", "violation"), [
    ({"NVIDIA_H100_80GB_HBM3,dtype=bf16": [[64, 8960]]}, "no kernel asks for this name"),
    ({"NVIDIA_A100-SXM4-80GB,dtype=int8_w8a8": [[256, 128]]}, "no kernel asks for this name"),
    ({"AMD_Instinct_MI300X": [[8, 1792]]}, "no kernel asks for this name"),
    ({BLOCK: [[16, 4096], [8, 2048]]}, "pairs of sizes in order, each once"),
    ({BLOCK: [[8]]}, "pairs of sizes in order, each once"),
])
def test_a_name_that_no_kernel_asks_for_is_a_violation(files: Any, violation: str) -> None:
    (said,) = tuned_names_are_asked_for(table(files=files))
    (rest,) = files
    assert said == f"tuned_configs[experts].files[{rest}]: {violation}"


def test_a_kernel_without_a_row_is_a_violation() -> None:
    bad = table()
    bad["tuned_configs"][0]["asked"][0]["by"] = ["NoSuchExperts"]
    assert list(tuned_names_are_asked_for(bad)) == [
        "tuned_configs[experts].asked: no class NoSuchExperts"]


@pytest.mark.parametrize(("files", "violations"), [
    ({f"{FOLDER}/{NAME}", f"{FOLDER}/README",
      f"{FOLDER}/E=64,N=8960,device_name=NVIDIA_H100_80GB_HBM3,dtype=bf16.json"}, []),
    (set(), [f"tuned_configs[experts]: {FOLDER}/{NAME}: no such file"]),
    ({f"{FOLDER}/{NAME}", f"{FOLDER}/E=1,N=2,device_name=NVIDIA_L4.json"},
     [f"tuned_configs[experts]: {FOLDER}/E=1,N=2,device_name=NVIDIA_L4.json: not in the table"]),
])
def test_the_table_is_held_against_the_wheel(files: set[str], violations: list[str]) -> None:
    source = EngineSource("wheel", "0.32.0", frozenset(files), lambda path: "")
    assert list(wrong_tuned_files(table(), source)) == violations
