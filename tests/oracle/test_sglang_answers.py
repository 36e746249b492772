"""What SGLang's worker said of generated cases (recorded), held against our answer: the protocol,
the comparison and the tables together, without an engine."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.tables.engine_loading import load_engine

from quantplan.oracle.cases import Case
from quantplan.oracle.run import judge

FILE = Path(__file__).parent / "sglang_answers.jsonl.gz"
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
"""`version`, `case` and `answer`: the first case of each kind that agreed, on five capabilities."""


@pytest.mark.parametrize("row", ROWS, ids=[
    f"{row['version']}-{row['case']['kind']}-{row['case']['capability']}" for row in ROWS])
def test_the_recorded_answer_is_ours(row: dict[str, Any]) -> None:
    verdict = judge(Case(**row["case"]), row["answer"], load_engine("sglang", row["version"]))
    assert (verdict.status, verdict.differences) == ("agree", ())


def test_the_answers_are_of_both_versions_many_kinds_and_refusals() -> None:
    kinds = {row["case"]["kind"] for row in ROWS}
    assert {row["version"] for row in ROWS} == {"0.5.22", "0.5.23"}
    assert len(kinds) >= 15
    assert {row["answer"]["outcome"] for row in ROWS} == {"ok", "error"}


@pytest.mark.parametrize("field, value", [
    ("method", "awq"), ("config_class", "X"), ("min_capability", 1), ("dtype", "float32"),
    ("kv_cache_dtype", "float8_e5m2")])
def test_a_changed_answer_is_seen(field: str, value: Any) -> None:
    row = next(row for row in ROWS if row["answer"]["outcome"] == "ok")
    answer = {**row["answer"], field: value}
    verdict = judge(Case(**row["case"]), answer, load_engine("sglang", row["version"]))
    assert [difference.field for difference in verdict.differences] == [field]
