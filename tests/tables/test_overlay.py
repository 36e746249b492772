"""A version as changes to another one: what each operation does, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quantplan.tables import compiling, load
from quantplan.tables.compiling import compile_table
from quantplan.tables.errors import TableError
from quantplan.tables.lint import lint
from quantplan.tables.load import (
    chain_names,
    parse_table,
    read_sources,
    read_table,
    sources_crc32,
)
from quantplan.tables.overlay import apply_changes

BASE = {
    "families": [{"id": "a", "kernels": ["K1", "K2"], "label": "A"},
                 {"id": "b", "kernels": ["K2"], "label": "B"}],
    "kernels": [{"id": "K1", "supported": [{"fact": "gpu.capability", "min": 80},
                                           {"fact": "gpu.capability", "max": 90},
                                           {"fact": "lib.x", "equals": True}]}],
    "backends": {"torch": ["K1"], "marlin": []},
    "attention": {"order": [{"backends": ["F"]}], "source": "x.py"},
    "codes": [75, 80],
}


def applied(**change: Any) -> Any:
    """Return BASE with one change made."""
    return apply_changes(BASE, [{"because": "b", "source": "s", **change}], "t")


def refusal(**change: Any) -> str:
    with pytest.raises(TableError) as raised:
        applied(**change)
    return str(raised.value).removeprefix(f"t: changes[0] at {change['at']}: ")


def kernels(table: Any, name: str = "a") -> Any:
    return next(row["kernels"] for row in table["families"] if row["id"] == name)


# What the operations do.


def test_set_replaces_a_value() -> None:
    assert applied(at="families[a].label", set="C")["families"][0]["label"] == "C"
    assert applied(at="kernels[K1].supported[lib.x].equals", set=False)["kernels"][0]["supported"][
        2] == {"fact": "lib.x", "equals": False}


def test_rows_without_an_id_are_named_by_position_where_their_fact_is_not_theirs_alone() -> None:
    table = applied(at="kernels[K1].supported[1].max", set=89)
    assert table["kernels"][0]["supported"][1] == {"fact": "gpu.capability", "max": 89}
    assert applied(at="attention.order[0].backends", append=["G"])["attention"]["order"] == [
        {"backends": ["F", "G"]}]


def test_merge_adds_and_replaces_fields() -> None:
    table = applied(at="families[b]", merge={"label": "C", "filter": False})
    assert table["families"][1] == {
        "id": "b", "kernels": ["K2"], "label": "C", "filter": False}
    assert applied(at="backends", merge={"triton": ["K9"]})["backends"]["triton"] == ["K9"]


@pytest.mark.parametrize("side, order", [
    ({}, ["torch", "marlin", "b12x"]), ({"before": "marlin"}, ["torch", "b12x", "marlin"]),
    ({"after": "torch"}, ["torch", "b12x", "marlin"]),
    ({"before": "torch"}, ["b12x", "torch", "marlin"]),
])
def test_new_keys_go_where_the_engine_has_them(side: dict[str, str], order: list[str]) -> None:
    """The engine's messages list a map's keys in order."""
    assert list(applied(at="backends", merge={"b12x": []}, **side)["backends"]) == order


@pytest.mark.parametrize("change, found", [
    ({"append": ["K3"]}, ["K1", "K2", "K3"]),
    ({"insert": ["K3", "K4"], "before": "K1"}, ["K3", "K4", "K1", "K2"]),
    ({"insert": ["K3"], "after": "K1"}, ["K1", "K3", "K2"]),
    ({"move": ["K2"], "before": "K1"}, ["K2", "K1"]),
    ({"move": ["K1"], "after": "K2"}, ["K2", "K1"]),
    ({"remove": ["K1"]}, ["K2"]),
    ({"remove": ["K1", "K2"]}, []),
])
def test_list_operations(change: dict[str, Any], found: list[str]) -> None:
    assert kernels(applied(at="families[a].kernels", **change)) == found


def test_remove_takes_rows_fields_keys_and_numbers() -> None:
    assert [row["id"] for row in applied(at="families", remove=["a"])["families"]] == ["b"]
    assert applied(at="families[a]", remove=["label"])["families"][0] == {
        "id": "a", "kernels": ["K1", "K2"]}
    assert applied(at="backends", remove=["marlin"])["backends"] == {"torch": ["K1"]}
    assert applied(at="codes", remove=[75])["codes"] == [80]


def test_a_map_key_may_be_a_step_of_its_own() -> None:
    assert applied(at="backends.marlin", append=["K1"]) == applied(
        at="backends[marlin]", append=["K1"])


def test_the_base_is_left_as_it_was_and_shares_nothing() -> None:
    new = ["K9"]
    table = applied(at="families[a].kernels", set=new)
    kernels(table).append("K10")
    assert new == ["K9"]
    assert kernels(BASE) == ["K1", "K2"]


def test_changes_are_made_in_order() -> None:
    changes = [{"at": "families[a].kernels", "append": ["K3"]},
               {"at": "families[a].kernels", "move": ["K3"], "before": "K1"}]
    assert kernels(apply_changes(BASE, changes, "t")) == ["K3", "K1", "K2"]


# What is refused.


@pytest.mark.parametrize("change, line", [
    ({"at": "families[c].kernels", "append": ["K"]}, "no 'c' there; wanted one of a, b"),
    ({"at": "familys", "append": ["K"]},
     "no 'familys' there; wanted one of families, kernels, backends, attention, codes"),
    ({"at": "families[a].label.x", "set": 1},
     "no 'x' there; wanted a list or a map on the way"),
    ({"at": "families[a].texts", "set": 1}, "no 'texts' there; wanted one of id, kernels, label"),
    ({"at": "kernels[K1].supported[gpu.capability]", "merge": {"min": 1}},
     "2 rows are called 'gpu.capability'; wanted one of gpu.capability, gpu.capability, lib.x"),
    ({"at": "attention.order[1]", "merge": {}}, "no '1' there; wanted one of 0"),
    *(({"at": path, "set": 1}, "not a path; wanted such as families[mxfp8].kernels")
      for path in (".families", "[a]", "families[", "families[a]]", "families a", "a..b")),
], ids=str)
def test_a_path_that_leads_nowhere(change: dict[str, Any], line: str) -> None:
    assert refusal(**change) == line


@pytest.mark.parametrize("change, line", [
    ({}, "one operation is needed; wanted one of set, merge, append, insert, move, remove; "
         "found none"),
    ({"set": 1, "remove": ["K1"]}, "one operation is needed; wanted one of set, merge, append, "
     "insert, move, remove; found set, remove"),
    ({"insert": ["K3"]}, "one neighbour is needed; wanted before or after"),
    ({"insert": ["K3"], "before": "K1", "after": "K2"},
     "one neighbour is needed; wanted before or after"),
    ({"insert": ["K3"], "before": "K7"}, "no 'K7' there; wanted one of K1, K2"),
    ({"remove": ["K7"]}, "no 'K7' there; wanted one of K1, K2"),
    ({"move": ["K7"], "before": "K1"}, "no 'K7' there; wanted one of K1, K2"),
    ({"merge": {"x": 1}}, "merge into what is no map"),
])
def test_an_operation_that_cannot_be(change: dict[str, Any], line: str) -> None:
    assert refusal(at="families[a].kernels", **change) == line


@pytest.mark.parametrize("change, line", [
    ({"at": "families[a].label", "set": "A"}, "changes nothing. Drop it."),
    ({"at": "families[a]", "merge": {"label": "A", "x": 1}}, "label is already that. Drop it."),
    ({"at": "families[a].kernels", "move": ["K1"], "before": "K2"}, "changes nothing. Drop it."),
    ({"at": "families[a].kernels", "append": []}, "changes nothing. Drop it."),
    ({"at": "families[a].kernels", "append": ["K2"]},
     "K2 is already there. Change its row instead."),
    ({"at": "families", "insert": [{"id": "b"}], "before": "a"},
     "b is already there. Change its row instead."),
])
def test_a_change_that_changes_nothing(change: dict[str, Any], line: str) -> None:
    assert refusal(**change) == line


@pytest.mark.parametrize("change, line", [
    ({"at": "families[a]", "remove": ["texts"]}, "no 'texts' there; wanted one of id, kernels, "
     "label"),
    ({"at": "families[a].label", "append": ["x"]}, "append where no list is"),
    ({"at": "families[a].label", "remove": ["x"]}, "remove where no list is"),
])
def test_an_operation_on_what_it_is_not_for(change: dict[str, Any], line: str) -> None:
    assert refusal(**change) == line


# Files that extend another one.

HEAD = """engine: vllm
version: "{version}"
extends: "{base}"
released: "2026-01-01"
wheel: {{file: x.whl, sha256: "0"}}
changes:
- {{at: methods_source, set: "{source}", because: moved, source: "{source}"}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tables folder that holds vLLM 0.32.0 as one file, 1.0.0 on it and 2.0.0 on that."""
    engines = tmp_path / "engines" / "vllm"
    engines.mkdir(parents=True)
    head, *parts = read_sources("engines/vllm/0.32.0")
    (engines / "0.32.0.yaml").write_bytes(head)
    (engines / "0.32.0").mkdir()
    for number, part in enumerate(parts):
        (engines / "0.32.0" / f"{number}.yaml").write_bytes(part)
    (engines / "1.0.0.yaml").write_text(HEAD.format(version="1.0.0", base="0.32.0", source="a.py"))
    (engines / "2.0.0.yaml").write_text(HEAD.format(version="2.0.0", base="1.0.0", source="b.py"))
    monkeypatch.setattr(load, "FOLDER", str(tmp_path))
    return engines


def read(version: str) -> Any:
    return read_table.__wrapped__(f"engines/vllm/{version}")


def test_a_chain_of_versions_is_one_table(folder: Path) -> None:
    base, first, second = read("0.32.0"), read("1.0.0"), read("2.0.0")
    assert (first["version"], first["methods_source"]) == ("1.0.0", "a.py")
    assert (second["version"], second["methods_source"]) == ("2.0.0", "b.py")
    assert second["families"] == base["families"]
    assert second["extends"] == "1.0.0"
    assert [change["because"] for change in second["changes"]] == ["moved"]
    assert "default" in base and "default" not in first


def test_the_crc_covers_every_file_of_the_chain(folder: Path) -> None:
    name = "engines/vllm/2.0.0"
    assert chain_names(name) == [name, "engines/vllm/1.0.0", "engines/vllm/0.32.0"]
    seen = {sources_crc32(name)}
    for file in ("2.0.0.yaml", "1.0.0.yaml", "0.32.0.yaml", "0.32.0/0.yaml"):
        with (folder / file).open("ab") as target:
            target.write(b"# a comment\n")
        seen.add(sources_crc32(name))
    assert len(seen) == 5


def test_the_compiled_form_of_a_version_is_stale_when_its_base_changes(folder: Path) -> None:
    compiling.write_compiled()
    path = Path(load.compiled_path("engines/vllm/1.0.0"))
    assert path.read_text() == compile_table("engines/vllm/1.0.0")
    head = (folder / "0.32.0.yaml").read_text().replace("2026-10-17", "2026-10-18")
    (folder / "0.32.0.yaml").write_text(head)
    assert path.read_text() != compile_table("engines/vllm/1.0.0")
    path.write_text(path.read_text().replace('"a.py"', '"stale.py"'))
    assert read("1.0.0")["methods_source"] == "a.py"


def test_versions_that_extend_each_other(folder: Path) -> None:
    (folder / "1.0.0.yaml").write_text(HEAD.format(version="1.0.0", base="2.0.0", source="a.py"))
    for version in ("1.0.0", "2.0.0"):
        with pytest.raises(TableError, match=r"extends: \d\.0\.0 extends this table"):
            read(version)


def test_a_base_without_a_table(folder: Path) -> None:
    (folder / "1.0.0.yaml").write_text(HEAD.format(version="1.0.0", base="0.1", source="a.py"))
    with pytest.raises(TableError) as raised:
        read("1.0.0")
    assert str(raised.value) == "tables/engines/vllm/1.0.0.yaml: extends: no table 0.1"


@pytest.mark.parametrize("old, new, line", [
    ("released:", "families: []\nreleased:", "unknown key 'families'"),
    ("changes:", "chances:", "unknown key 'chances'"),
    ("because: moved, ", "", "changes[0]: missing key 'because'"),
    (", source: \"a.py\"}", "}", "changes[0]: missing key 'source'"),
    ("set:", "replace:", "changes[0]: unknown key 'replace'"),
    ("set: \"a.py\"", "set: 3", "methods_source: wrong type; wanted text; found int 3"),
])
def test_a_file_of_changes_follows_its_schema(
    folder: Path, old: str, new: str, line: str
) -> None:
    path = folder / "1.0.0.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(TableError) as raised:
        parse_table("engines/vllm/1.0.0", path.read_bytes())
    assert line in str(raised.value)


def test_the_laws_hold_for_the_merged_table(folder: Path) -> None:
    """A family of the base may not name a kernel that the version took out."""
    path = folder / "1.0.0.yaml"
    path.write_text(path.read_text() + "- {at: kernels, remove: [MarlinLinearKernel], "
                    "because: gone, source: a.py}\n")
    compiling.write_compiled()
    found = [line for line in lint() if "1.0.0" in line]
    assert any("no kernel row MarlinLinearKernel" in line for line in found)
