"""The generated cases: the same for a seed, in their bounds, of many kinds; and drawing itself."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.load import read_table

from quantplan.oracle.cases import Case
from quantplan.oracle.draw import Draw, leaves, put
from quantplan.oracle.grid import drawn_machines, grid
from quantplan.oracle.grid_models import Paths, cut, grid_models

TABLE = load_engine("vllm", "0.32.0")
ROWS = read_table("grid/vllm")
CASES = list(grid(400, 7, TABLE))


def test_a_seed_gives_the_same_cases_and_another_seed_others() -> None:
    again = [case.to_dict() for case in grid(400, 7, TABLE)]
    assert [case.to_dict() for case in CASES] == again
    assert [case.to_dict() for case in grid(400, 8, TABLE)] != again


def test_fewer_cases_are_the_first_of_more() -> None:
    assert list(grid(30, 7, TABLE)) == CASES[:30]


def test_ids_are_seed_and_number() -> None:
    assert [case.id for case in CASES[:3]] == ["7/0", "7/1", "7/2"]


def test_every_capability_and_family_with_an_example_comes_up() -> None:
    """400 cases over 12 capabilities: the chance that one is missing is below 1e-13."""
    assert {case.capability for case in CASES} == set(ROWS["capabilities"])
    assert {case.config["architectures"][0] for case in grid(2000, 7, TABLE)} == set(grid_models())


def test_every_kind_comes_up() -> None:
    assert {case.kind for case in grid(2000, 7, TABLE)} == {row["id"] for row in ROWS["kinds"]}


def test_capabilities_can_be_named() -> None:
    assert {case.capability for case in grid(40, 7, TABLE, [89, 90])} == {89, 90}


def test_a_capability_has_few_machines_and_a_plain_one() -> None:
    """An engine is imported for each machine, so their number is bounded."""
    machines = Counter(json.dumps([case.capability, case.env, case.libs]) for case in CASES)
    assert len(machines) <= len(ROWS["capabilities"]) * (1 + ROWS["drawn_machines"])
    plain = [count for key, count in machines.items() if json.loads(key)[1:] == [{}, {}]]
    assert 0.4 < sum(plain) / len(CASES) < 0.6


def test_machines_name_only_what_the_table_knows() -> None:
    for machine in drawn_machines(7, 90, ROWS, TABLE)[1:]:
        assert set(machine["env"]) <= set(TABLE["environment"])
        assert set(machine["libs"]) <= set(TABLE["libraries"])
        assert machine["env"] or machine["libs"]


def test_no_placeholder_of_ours_is_left_in_a_case() -> None:
    names = ("{leaf}", "{fused}", "{name}", "{layer}", "{kernel}", "{method}", "{absent}",
             "{linear_backend}")
    text = json.dumps([case.to_dict() for case in CASES])
    assert [name for name in names if name in text] == []


def test_headers_hold_some_modules_in_16_bits() -> None:
    stored = [case.tensors for case in CASES if case.tensors is not None]
    assert len(stored) > 10
    dtypes = Counter(dtype for tensors in stored for dtype in tensors.values())
    assert set(dtypes) == {"I32", "F16", "BF16"}


def test_a_case_survives_its_json_form() -> None:
    for case in CASES[:50]:
        assert Case(**json.loads(json.dumps(case.to_dict()))) == case


def test_the_first_value_of_an_option_is_the_usual_one() -> None:
    plain = sum("tp" not in case.options for case in CASES)
    assert 0.6 < plain / len(CASES) < 0.8


# Models.


@pytest.mark.parametrize("architecture", sorted(grid_models()))
def test_grid_models_are_small_and_have_a_structure(architecture: str) -> None:
    for config in grid_models()[architecture]:
        structure = model_structure(Checkpoint("", "test", config))
        assert structure.architecture == architecture
        assert structure.num_layers <= 4


def test_a_cut_config_keeps_the_start_of_its_lists() -> None:
    config = {"num_hidden_layers": 6, "layer_types": list("abcdef"), "first_k_dense_replace": 3,
              "hidden_size": 64, "eos_token_id": [1, 2]}
    assert cut(config) == {"num_hidden_layers": 4, "layer_types": list("abcd"),
                           "first_k_dense_replace": 1, "hidden_size": 64, "eos_token_id": [1, 2]}
    assert config["num_hidden_layers"] == 6


def test_the_text_part_of_a_wrapper_is_cut() -> None:
    assert cut({"text_config": {"num_hidden_layers": 30}}) == {
        "text_config": {"num_hidden_layers": 2}}


def test_paths_of_a_config_that_is_refused_are_few() -> None:
    paths = Paths({"architectures": ["NoSuchModel"]})
    assert (paths.leaves, paths.fused, paths.layers) == (
        ["lm_head"], ["lm_head"], ["model.layers.0"])


# Drawing.


def test_draws_are_those_of_the_seed_on_every_python() -> None:
    """Random.random is documented to give the same numbers for a seed; nothing else is used. The
    letters are those of CPython 3.10, 3.12 and 3.13."""
    draw = Draw("quantplan")
    assert "".join(draw.one("abcdefgh") for _ in range(8)) == "aabhaggf"


def test_some_draws_no_row_twice() -> None:
    draw = Draw("1")
    for _ in range(200):
        drawn = draw.some(list(range(5)), 3)
        assert len(drawn) == len(set(drawn)) <= 3


def test_rows_are_drawn_by_weight() -> None:
    draw = Draw("1")
    rows = [{"id": "often", "weight": 9}, {"id": "seldom", "weight": 1}]
    counts = Counter(draw.weighted(rows)["id"] for _ in range(1000))
    assert 850 < counts["often"] < 950


def test_placeholders_are_filled_at_every_depth() -> None:
    draw = Draw("1", {"leaf": lambda _: "a.b", "none": lambda _: None})
    assert draw.filled({"{leaf}": ["re:{leaf}$", 3, {"x": "{leaf}"}], "y": "{none}"}) == {
        "a.b": ["re:a.b$", 3, {"x": "a.b"}], "y": None}
    assert draw.filled("{unknown} {leaf}") == "{unknown} a.b"


@pytest.mark.parametrize("path, value, expected", [
    ("a.b", 2, {"a": {"b": 2}, "f.json": {"q": 1}}),
    ("a.b", "{absent}", {"a": {}, "f.json": {"q": 1}}),
    ("f.json.q", 2, {"a": {"b": 1}, "f.json": {"q": 2}}),
    ("a.b.c", 2, {"a": {"b": 1}, "f.json": {"q": 1}}),
    ("new", 2, {"a": {"b": 1}, "f.json": {"q": 1}, "new": 2}),
])
def test_a_field_is_put_at_its_path(path: str, value: Any, expected: Any) -> None:
    tree: dict[str, Any] = {"a": {"b": 1}, "f.json": {"q": 1}}
    put(tree, path, value)
    assert tree == expected


def test_leaves_are_the_fields_without_mappings() -> None:
    assert leaves({"a": {"b": 1, "c": {}}, "d": [1]}) == ["a.b", "a.c", "d"]
