"""The laws of routed experts: each is tripped by a bad table, alone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from quantplan.tables.engine_loading import whole_rows
from quantplan.tables.lint import ENGINE_LAWS
from quantplan.tables.load import read_table
from quantplan.tables.moe_laws import MOE_LAWS

Table = dict[str, Any]


def row(rows: list[Table], name: str) -> Table:
    """Return the row called NAME."""
    return next(item for item in rows if item["id"] == name)


def fp8(table: Table) -> Table:
    return row(table["experts_lists"], "fp8")


def triton(table: Table) -> Table:
    return row(table["experts_classes"], "TritonExperts")


def unknown_like(table: Table) -> None:
    row(table["experts_classes"], "TritonWNA16Experts")["like"] = "NopeExperts"


def class_without_file(table: Table) -> None:
    del row(table["experts_classes"], "DeepGemmFP4Experts")["file"]


def unknown_class(table: Table) -> None:
    row(fp8(table)["backends"], "TRITON")["classes"].append("NopeExperts")


def unused_class(table: Table) -> None:
    table["experts_classes"].append({"id": "LonelyExperts", "file": "a/b.py"})


def unknown_backend_in_flag(table: Table) -> None:
    fp8(table)["flags"]["triton"] = ["NOPE"]


def unknown_backend_in_order(table: Table) -> None:
    fp8(table)["order"][0]["first"] = "NOPE"


def unknown_backend_in_switch(table: Table) -> None:
    fp8(table)["switches"][0]["removes"] = ["NOPE"]


def unknown_key_in_scheme(table: Table) -> None:
    triton(table)["scheme"][0]["in"].append("kFp8StaticTensorSym x kNope")


def unknown_key_in_when(table: Table) -> None:
    triton(table)["scheme"][1]["when"] = {"quant.scheme": "kNope x None"}


def unknown_key_in_backend(table: Table) -> None:
    row(table["experts_lists"], "mxfp4")["backends"][0]["act"] = "kNope"


def unknown_key_in_mode(table: Table) -> None:
    table["experts_modes"][1]["weights"] = ["kNope"]


def unknown_check(table: Table) -> None:
    row(table["experts_lists"], "mxfp4_fixed")["backends"][0]["checks"] = ["colour"]


def unknown_activations(table: Table) -> None:
    triton(table)["activations"] = "nope"


def mode_without_words(table: Table) -> None:
    table["experts_modes"][1]["mode"] = "W9A9"


def class_mode_without_words(table: Table) -> None:
    row(table["experts_classes"], "Int4EmulationTritonExperts")["mode"] = "W9A9"


def unknown_word(table: Table) -> None:
    fp8(table)["texts"]["unsupported"] = "{backnd} {reason}."


BAD: list[tuple[str, Callable[[Table], None], str]] = [
    ("likes_are_known", unknown_like,
     "experts_classes[TritonWNA16Experts]: like NopeExperts: no such row above"),
    ("likes_are_known", class_without_file, "experts_classes[DeepGemmFP4Experts]: no file"),
    ("classes_are_known", unknown_class, "experts_lists[fp8]: no class row NopeExperts"),
    ("classes_are_known", unused_class, "experts_classes[LonelyExperts]: in no list"),
    ("backends_are_known", unknown_backend_in_flag, "experts_lists[fp8]: no backend NOPE"),
    ("backends_are_known", unknown_backend_in_order, "experts_lists[fp8]: no backend NOPE"),
    ("backends_are_known", unknown_backend_in_switch, "experts_lists[fp8]: no backend NOPE"),
    ("keys_are_known", unknown_key_in_scheme,
     "experts_classes[TritonExperts].scheme[0]: no quant key kNope"),
    ("keys_are_known", unknown_key_in_when,
     "experts_classes[TritonExperts].scheme[1]: no quant key kNope"),
    ("keys_are_known", unknown_key_in_backend, "experts_lists[mxfp4]: no quant key kNope"),
    ("keys_are_known", unknown_key_in_mode, "experts_modes: no quant key kNope"),
    ("checks_are_known", unknown_check, "experts_lists[mxfp4_fixed].MARLIN: no check colour"),
    ("activations_are_known", unknown_activations,
     "experts_classes[TritonExperts]: no activation set nope"),
    ("expert_modes_have_words", mode_without_words,
     "experts_modes: mode W9A9 has no row in tables/modes"),
    ("expert_modes_have_words", class_mode_without_words,
     "experts_classes[Int4EmulationTritonExperts]: mode W9A9 has no row in tables/modes"),
    ("expert_texts_fill", unknown_word,
     "experts_lists[fp8].texts.unsupported: unknown word {backnd}"),
]


@pytest.mark.parametrize("law, breaker, line", BAD, ids=[b.__name__ for _, b, _ in BAD])
def test_a_bad_table_trips_one_law(law: str, breaker: Callable[[Table], None], line: str) -> None:
    table: Table = deepcopy(read_table("engines/vllm/0.32.0"))
    breaker(table)
    found = {each.__name__: list(each(table)) for each in (*MOE_LAWS, *ENGINE_LAWS)}
    assert {name: lines for name, lines in found.items() if lines} == {law: [line]}


def test_every_law_has_a_bad_table() -> None:
    assert {law for law, _, _ in BAD} == {law.__name__ for law in MOE_LAWS}


def test_every_law_says_what_it_wants() -> None:
    assert all(law.__doc__ and law.__doc__.endswith(".") for law in MOE_LAWS)


def test_a_row_takes_what_it_does_not_say_from_the_row_it_is_like() -> None:
    rows = [{"id": "a", "x": 1, "y": 2}, {"id": "b", "like": "a", "y": 3}]
    assert list(whole_rows(rows)) == [rows[0], {"id": "b", "like": "a", "x": 1, "y": 3}]
