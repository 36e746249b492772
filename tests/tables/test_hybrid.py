"""Tables between two versions, and the fewest rows that decide an answer."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantplan.tables.hybrid import deciding, hybrid, merged_order, of_units, unit
from quantplan.tables.load import read_table
from quantplan.tables.table_diff import Difference, differences

OLD: dict[str, Any] = {
    "families": [{"id": "a", "kernels": ["K1"]}, {"id": "b", "kernels": []}],
    "methods": [{"id": "m1"}, {"id": "m2"}],
    "backends": {"torch": ["K1"], "x-y": []},
    "defaults": {"size": 1, "share": 0.9},
    "codes": [75],
}
NEW: dict[str, Any] = {
    "families": [{"id": "a", "kernels": ["K2"]}, {"id": "c", "kernels": []}],
    "methods": [{"id": "m0"}, {"id": "m2"}, {"id": "m3"}],
    "backends": {"torch": ["K1", "K2"], "x-y": ["K2"], "new": []},
    "defaults": {"size": 2, "share": 0.9},
    "codes": [75, 80],
}


def ids(table: Any, name: str) -> list[str]:
    return [row["id"] for row in table[name]]


@pytest.mark.parametrize("at, found", [
    ("kernels[X].min_capability", "kernels[X]"), ("kernels[X]", "kernels[X]"),
    ("attention.backends[F].requires", "attention.backends[F]"), ("codes", "codes"),
    ("linear_backends.torch", "linear_backends.torch"),
])
def test_the_unit_of_a_difference_is_its_row(at: str, found: str) -> None:
    assert unit(Difference(at, "changed", 1, 2)) == found


def test_a_hybrid_of_nothing_is_the_old_one_with_rows_that_nobody_names() -> None:
    table = hybrid(OLD, NEW, ())
    assert ids(table, "families") == ["a", "c", "b"]
    assert table["families"][::2] == OLD["families"]
    assert {name: table[name] for name in table if name != "families"} == {
        name: OLD[name] for name in OLD if name != "families"}


def test_a_hybrid_of_everything_is_the_new_one_with_rows_that_nobody_names() -> None:
    units = {unit(difference) for difference in differences(OLD, NEW)}
    table = hybrid(OLD, NEW, units)
    assert ids(table, "families") == ["a", "c", "b"]
    assert table["families"][0] == NEW["families"][0]
    assert {name: table[name] for name in table if name != "families"} == {
        name: NEW[name] for name in NEW if name != "families"}


@pytest.mark.parametrize("taken, name, found", [
    ("families[a]", "families", [*NEW["families"], OLD["families"][1]]),
    ("methods[m0]", "methods", [{"id": "m0"}, {"id": "m1"}, {"id": "m2"}]),
    ("methods[m1]", "methods", [{"id": "m2"}]),
    ("methods[m3]", "methods", [{"id": "m1"}, {"id": "m2"}, {"id": "m3"}]),
    ("backends.torch", "backends", {"torch": ["K1", "K2"], "x-y": []}),
    ("backends[x-y]", "backends", {"torch": ["K1"], "x-y": ["K2"]}),
    ("backends.new", "backends", {"torch": ["K1"], "x-y": [], "new": []}),
    ("defaults.size", "defaults", {"size": 2, "share": 0.9}),
    ("codes", "codes", [75, 80]),
])
def test_one_unit(taken: str, name: str, found: Any) -> None:
    table = hybrid(OLD, NEW, {taken})
    assert table[name] == found
    rest = hybrid(OLD, NEW, ())
    assert {key: table[key] for key in table if key != name} == {
        key: rest[key] for key in rest if key != name}


def test_the_real_tables_halfway() -> None:
    old, new = read_table("engines/vllm/0.32.0"), read_table("engines/vllm/0.33.0")
    units = {unit(difference) for difference in differences(old, new)}
    left = list(differences(hybrid(old, new, units), new))
    assert {difference.kind for difference in left} <= {"removed"}
    found = list(differences(old, hybrid(old, new, {"families[mxfp8]"})))
    assert {unit(d) for d in found if d.item} == {"families[mxfp8]"}
    assert {d.kind for d in found} == {"added"}


@pytest.mark.parametrize("first, second, found", [
    ("ab", "ab", "ab"), ("ab", "axb", "axb"), ("ab", "xab", "xab"), ("ab", "abx", "abx"),
    ("ab", "ba", "ab"), ("", "ab", "ab"), ("ab", "xy", "xyab"), ("abc", "acx", "abcx"),
])
def test_an_order_keeps_the_first_and_places_the_second(
    first: str, second: str, found: str
) -> None:
    assert "".join(merged_order(first, second)) == found


# What decides.


def test_one_of_many() -> None:
    asked = []

    def holds(taken: frozenset[str]) -> bool:
        asked.append(taken)
        return "u77" in taken

    assert deciding([f"u{n}" for n in range(100)], holds) == ["u77"]
    assert len(asked) < 20


def test_nothing_where_all_units_do_not_do() -> None:
    assert deciding(["a", "b"], lambda taken: False) == []
    assert deciding([], lambda taken: True) == []


UNITS = ["a", "b", "c", "d", "e"]


@given(st.lists(st.sets(st.sampled_from(UNITS), min_size=1), min_size=1, max_size=3))
def test_a_smallest_set_that_suffices(causes: list[set[str]]) -> None:
    """Where any of some sets suffices, what is found suffices, and no part of it does."""
    def holds(taken: frozenset[str]) -> bool:
        return any(cause <= taken for cause in causes)

    found = deciding(UNITS, holds)
    assert holds(frozenset(found))
    assert not any(holds(frozenset(part)) for size in range(len(found))
                   for part in combinations(found, size))


def test_a_source_that_moved_decides_nothing() -> None:
    rows = [Difference("traits[x].value", "changed", 1, 2), Difference(
        "traits[x].source", "changed", "a.py", "b.py"), Difference("codes", "changed", 1, 2)]
    assert of_units(rows, {"traits[x]"}) == (rows[0],)
