"""What differs between two tables: which rows, fields and items, and which change says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.reports.table_diff_text import table_diff_data, table_diff_text
from quantplan.tables import load
from quantplan.tables.load import read_sources, read_table
from quantplan.tables.table_diff import Difference, Reason, differences, table_differences

OLD = {"version": "1", "families": [{"id": "a", "kernels": ["K1", "K2"], "label": "A"},
                                    {"id": "b", "kernels": []}],
       "backends": {"x-y": ["K1"], "torch": []}, "minimum": 75,
       "checks": [{"fact": "layer.k", "min": 1}]}


def found(**fields: Any) -> list[Difference]:
    """Return the differences between OLD and OLD with FIELDS in place of its own."""
    return list(differences(OLD, {**OLD, **fields}))


@pytest.mark.parametrize("fields, difference", [
    ({"minimum": 80}, Difference("minimum", "changed", 75, 80)),
    ({"extra": 1}, Difference("extra", "added", None, 1)),
    ({"backends": {**OLD["backends"], "torch": ["K1"]}},  # type: ignore[dict-item]
     Difference("backends.torch", "added", None, "K1", "K1")),
    ({"backends": {"torch": []}}, Difference("backends[x-y]", "removed", ["K1"], None)),
    ({"families": OLD["families"][:1]},  # type: ignore[index]
     Difference("families[b]", "removed", {"id": "b", "kernels": []}, None)),
    ({"families": [{"id": "a", "kernels": ["K2", "K1"], "label": "A"}, {"id": "b", "kernels": []}]},
     Difference("families[a].kernels", "reordered", ["K1", "K2"], ["K2", "K1"])),
    ({"families": OLD["families"][::-1]},  # type: ignore[index]
     Difference("families", "reordered", ["a", "b"], ["b", "a"])),
])
def test_one_difference(fields: dict[str, Any], difference: Difference) -> None:
    assert found(**fields) == [difference]


def test_a_changed_requirement_is_one_that_went_and_one_that_came() -> None:
    assert found(checks=[{"fact": "layer.k", "min": 2}]) == [
        Difference("checks", "removed", {"fact": "layer.k", "min": 1}, None, "layer.k"),
        Difference("checks", "added", None, {"fact": "layer.k", "min": 2}, "layer.k")]


def test_what_says_which_version_it_is_is_no_difference() -> None:
    assert found(version="2", extends="1", changes=[1], default=True) == []


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_a_version_does_not_differ_from_itself(version: str) -> None:
    assert table_differences("vllm", version, version) == []


def test_every_difference_of_a_version_from_its_base_has_its_change() -> None:
    """Between a table and the one that it extends nothing differs but by its changes, and every
    change made a difference."""
    rows = table_differences("vllm", "0.32.0", "0.33.0")
    changes = read_table("engines/vllm/0.33.0")["changes"]
    assert [row.at for row in rows if not row.reasons] == []
    told = {reason.because for row in rows for reason in row.reasons}
    assert told == {change["because"] for change in changes}


def test_the_way_back_has_the_same_differences() -> None:
    there = table_differences("vllm", "0.32.0", "0.33.0")
    back = table_differences("vllm", "0.33.0", "0.32.0")
    assert {(d.at, d.item) for d in there} == {(d.at, d.item) for d in back}


# Reasons between versions that part from a common one.

HEAD = """engine: vllm
version: "{version}"
extends: "0.32.0"
released: "2026-01-01"
wheel: {{file: x.whl, sha256: "0"}}
changes:
- {{at: "families[fp8_w8a8].kernels", {change}, because: "{version} says", source: a.py}}
"""
LAST = "HummingFP8ScaledMMLinearKernel"


@pytest.fixture
def siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two versions change the same list of 0.32.0."""
    engines = tmp_path / "engines" / "vllm"
    (engines / "0.32.0").mkdir(parents=True)
    for number, source in enumerate(read_sources("engines/vllm/0.32.0")):
        name = f"0.32.0/{number}.yaml" if number else "0.32.0.yaml"
        (engines / name).write_bytes(source)
    for version, change in (("1.0", f"remove: [{LAST}]"), ("2.0", "append: [MarlinLinearKernel]")):
        (engines / f"{version}.yaml").write_text(HEAD.format(version=version, change=change))
    monkeypatch.setattr(load, "FOLDER", str(tmp_path))
    monkeypatch.setattr("quantplan.tables.table_diff.read_table", read_table.__wrapped__)


def test_both_sides_of_the_parting_give_reasons(siblings: None) -> None:
    at = "families[fp8_w8a8].kernels"
    assert table_differences("vllm", "1.0", "2.0") == [
        Difference(at, "added", None, LAST, LAST, (Reason("1.0", "1.0 says", "a.py"),)),
        Difference(at, "added", None, "MarlinLinearKernel", "MarlinLinearKernel",
                   (Reason("2.0", "2.0 says", "a.py"),))]


# As text and as JSON.

TOLD = [
    Difference("families[a].kernels", "added", None, "K3", "K3",
               (Reason("2", "it is faster", "a.py:K3"),)),
    Difference("kernels[K3]", "added", None, {"id": "K3", "mode": "W4A16"}),
    Difference("minimum", "changed", 75, None),
    Difference("families[a].kernels", "reordered", ["K1", "K2"], ["K2", "K1"]),
    Difference("text", "removed", "x" * 300, None),
]


def test_the_text() -> None:
    assert table_diff_text("vllm", "1", "2", TOLD) == f"""vllm 1 -> 2: 5 differences

+ families[a].kernels: K3
    2: it is faster  [a.py:K3]

+ kernels[K3]

~ minimum: 75 -> null

~ families[a].kernels: the order is K2, K1; was K1, K2

- text: {'x' * 200}...
"""


def test_the_data_is_json() -> None:
    data = table_diff_data("vllm", "1", "2", TOLD)
    assert json.loads(json.dumps(data)) == data
    assert data["differences"][0] == {
        "at": "families[a].kernels", "kind": "added", "old": None, "new": "K3", "item": "K3",
        "reasons": [{"version": "2", "because": "it is faster", "source": "a.py:K3"}]}
