"""Which versions have a table, which one is meant, and what stands in for one without."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables import versions
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import NotKnownError, TableError
from quantplan.tables.version_laws import names_are_of_their_tables, one_default_each
from quantplan.tables.versions import (
    default_version,
    engine_versions,
    known_version,
    nearest_version,
)

from quantplan import budget, explain


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM have three versions, out of order, and SGLang none."""
    names = ["engines/vllm/0.9.0", "engines/vllm/0.10.0", "engines/vllm/0.9.10", "gpus/ada"]
    monkeypatch.setattr(versions, "table_names", lambda: names)
    monkeypatch.setattr(versions, "engine_versions", engine_versions.__wrapped__)
    monkeypatch.setattr(versions, "default_version", lambda engine: "0.9.10")


def test_versions_are_ordered_as_numbers(known: None) -> None:
    assert engine_versions.__wrapped__("vllm") == ["0.9.0", "0.9.10", "0.10.0"]


def test_no_version_means_the_default() -> None:
    assert load_engine("vllm") == load_engine("vllm", default_version("vllm"))
    assert load_engine("vllm")["default"] is True


def test_one_table_of_each_engine_is_the_default() -> None:
    """A table that extends the default one does not inherit that."""
    marked = [v for v in engine_versions("vllm") if load_engine("vllm", v).get("default")]
    assert marked == [default_version("vllm")]


def test_an_engine_without_a_default_is_a_table_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "head_field", lambda name, field: None)
    with pytest.raises(TableError) as raised:
        default_version.__wrapped__("vllm")
    assert str(raised.value) == (
        "tables/engines/vllm: no table is the default; wanted default: true")


@pytest.mark.parametrize("asked, wanted", [
    ("0.9.5", "vllm 0.9.0 or vllm 0.9.10"), ("0.10.1", "vllm 0.10.0"), ("0.1", "vllm 0.9.0"),
])
@pytest.mark.parametrize("stand_in, way_out", [(True, ", or pass --assume-nearest."), (False, ".")])
def test_a_version_without_a_table_names_the_nearest(
    known: None, asked: str, wanted: str, stand_in: bool, way_out: str
) -> None:
    with pytest.raises(NotKnownError) as raised:
        known_version("vllm", asked, stand_in=stand_in)
    assert str(raised.value) == (
        f"no table for vllm {asked}; wanted {wanted}. There are 0.9.0, 0.9.10, 0.10.0: name one"
        f"{way_out}")


@pytest.mark.parametrize("asked", ["", "main", "../vllm/0.9.0"])
def test_what_is_no_version_names_all(known: None, asked: str) -> None:
    with pytest.raises(NotKnownError) as raised:
        known_version("vllm", asked)
    assert str(raised.value) == (
        f"no table for vllm {asked}; wanted vllm 0.9.0 or vllm 0.9.10 or vllm 0.10.0. Name one of "
        "those versions.")


@pytest.mark.parametrize("asked", [None, "0.5.22"])
def test_an_engine_without_tables_names_those_with_one(known: None, asked: str | None) -> None:
    with pytest.raises(NotKnownError) as raised:
        known_version("sglang", asked)
    assert str(raised.value) == (f"no table for {' '.join(('sglang', *([asked] if asked else [])))}"
                                 "; wanted vllm. Name one of those engines.")


@pytest.mark.parametrize("asked, nearest", [
    ("0.9.0", "0.9.0"), ("0.9.9", "0.9.0"), ("0.9.11", "0.9.10"), ("0.11.0rc1", "0.10.0"),
    ("0.10.0.post1", "0.10.0"), ("0.10.1+cu130", "0.10.0"), ("v0.10.1", "0.10.0"),
    ("0.8", "0.9.0"),
])
def test_the_newest_before_a_version_is_nearest_else_the_oldest(
    known: None, asked: str, nearest: str
) -> None:
    assert nearest_version("vllm", asked) == nearest


@pytest.mark.parametrize("asked", ["main", "", "../vllm/0.9.0", "0.9.5/x", "0.9 .5"])
def test_what_is_no_version_has_no_nearest(known: None, asked: Any) -> None:
    with pytest.raises(NotKnownError, match="no table for vllm"):
        nearest_version("vllm", asked)


# Laws between versions.

TWO = {"engines/vllm/1.0": {"engine": "vllm", "version": "1.0", "default": True},
       "engines/vllm/2.0": {"engine": "vllm", "version": "2.0"}}


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {**TWO, name: {**TWO[name], **fields}}


def test_two_good_tables_keep_the_laws() -> None:
    assert [*one_default_each(TWO), *names_are_of_their_tables(TWO)] == []


@pytest.mark.parametrize("entries, line", [
    (changed("engines/vllm/1.0", default=False),
     "tables/engines/vllm: 0 tables have default: true; wanted 1"),
    (changed("engines/vllm/2.0", default=True),
     "tables/engines/vllm: 2 tables have default: true; wanted 1"),
])
def test_one_default_each(entries: Any, line: str) -> None:
    assert list(one_default_each(entries)) == [line]


def test_a_table_is_of_the_version_of_its_path() -> None:
    assert list(names_are_of_their_tables(changed("engines/vllm/2.0", version="2.1"))) == [
        "tables/engines/vllm/2.0.yaml: says that it is engines/vllm/2.1"]


# Standing in.


def test_a_stand_in_says_so_everywhere() -> None:
    answer = explain("llama-3.1-8b", engine_version="0.32.9", capability="8.9",
                     assume_nearest=True)
    view = answer.to_dict()
    assert view["engine"] == {"name": "vllm", "version": "0.32.0", "asked": "0.32.9"}
    assert view["findings"][0] == {
        "stage": "flags", "severity": "warning", "id": "assumed-version",
        "message": "vllm 0.32.9 has no table: this is the answer of 0.32.0",
        "hint": "What changed between the two is not known here.", "source": None}
    assert view["layers"] == explain("llama-3.1-8b", capability="8.9").to_dict()["layers"]


def test_a_version_with_a_table_needs_no_stand_in() -> None:
    answer = explain("llama-3.1-8b", engine_version="0.32.0", capability="8.9",
                     assume_nearest=True)
    assert answer.trace.asked is None
    assert "assumed-version" not in [finding.id for finding in answer.trace.findings]


def test_a_budget_of_a_stand_in_says_so() -> None:
    found = budget("llama-3.1-8b", gpu_mem="24GiB", engine_version="0.32.9", assume_nearest=True)
    assert [note.message for note in found.notes if note.id == "assumed-version"] == [
        "vllm 0.32.9 has no table: this is the answer of 0.32.0"]
