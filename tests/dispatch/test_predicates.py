"""The vocabulary of requirements: each predicate passes, fails and is unknown, in exact words."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.dispatch.predicates import (
    FAIL,
    PASS,
    PREDICATES,
    UNKNOWN,
    Check,
    applies,
    evaluate,
    fill,
    predicate_of,
    show,
)
from quantplan.tables.requirement_rows import PREDICATE_FIELDS

Row = dict[str, Any]

CASES: list[tuple[Row, dict[str, Any], str, str]] = [
    ({"fact": "gpu.capability", "min": 89}, {"gpu.capability": 80}, FAIL,
     "gpu.capability is 8.0; must be at least 8.9"),
    ({"fact": "gpu.capability", "min": 89}, {"gpu.capability": 89}, PASS,
     "gpu.capability is 8.9; must be at least 8.9"),
    ({"fact": "gpu.capability", "min": 89}, {"gpu.capability": None}, UNKNOWN,
     "gpu.capability is not known; must be at least 8.9"),
    ({"fact": "gpu.capability", "max": 121}, {"gpu.capability": 129}, FAIL,
     "gpu.capability is 12.9; must be at most 12.1"),
    ({"fact": "attn.head_dim", "max": 256}, {"attn.head_dim": 256}, PASS,
     "attn.head_dim is 256; must be at most 256"),
    ({"fact": "attn.head_dim", "max": 256}, {"attn.head_dim": None}, UNKNOWN,
     "attn.head_dim is not known; must be at most 256"),
    ({"fact": "lib.conch", "equals": True}, {"lib.conch": False}, FAIL,
     "lib.conch is false; must be true"),
    ({"fact": "lib.conch", "equals": True}, {"lib.conch": True}, PASS,
     "lib.conch is true; must be true"),
    ({"fact": "lib.conch", "equals": True}, {"lib.conch": None}, UNKNOWN,
     "lib.conch is not known; must be true"),
    ({"fact": "lib.conch", "equals": False}, {"lib.conch": None}, UNKNOWN,
     "lib.conch is not known; must be false"),
    ({"fact": "quant.act_scale", "equals": "tensor"}, {"quant.act_scale": "token"}, FAIL,
     "quant.act_scale is token; must be tensor"),
    ({"fact": "gpu.capability", "equals": 90}, {"gpu.capability": 100}, FAIL,
     "gpu.capability is 10.0; must be 9.0"),
    ({"fact": "quant.act_scale", "not_equals": "tensor"}, {"quant.act_scale": "tensor"}, FAIL,
     "quant.act_scale is tensor; must not be tensor"),
    ({"fact": "quant.act_scale", "not_equals": "tensor"}, {"quant.act_scale": "token"}, PASS,
     "quant.act_scale is token; must not be tensor"),
    ({"fact": "quant.act_scale", "not_equals": "tensor"}, {"quant.act_scale": None}, UNKNOWN,
     "quant.act_scale is not known; must not be tensor"),
    ({"fact": "quant.group_size", "in": [-1, 64, 128]}, {"quant.group_size": 32}, FAIL,
     "quant.group_size is 32; must be one of -1, 64, 128"),
    ({"fact": "quant.group_size", "in": [-1, 64, 128]}, {"quant.group_size": -1}, PASS,
     "quant.group_size is -1; must be one of -1, 64, 128"),
    ({"fact": "quant.group_size", "in": [-1, 64, 128]}, {"quant.group_size": None}, UNKNOWN,
     "quant.group_size is not known; must be one of -1, 64, 128"),
    ({"fact": "gpu.capability", "in": [90, 100]}, {"gpu.capability": 89}, FAIL,
     "gpu.capability is 8.9; must be one of 9.0, 10.0"),
    ({"fact": "model.type", "not_in": ["a", "b"]}, {"model.type": "a"}, FAIL,
     "model.type is a; must not be one of a, b"),
    ({"fact": "model.type", "not_in": ["a", "b"]}, {"model.type": "llama"}, PASS,
     "model.type is llama; must not be one of a, b"),
    ({"fact": "model.type", "not_in": ["a", "b"]}, {"model.type": None}, UNKNOWN,
     "model.type is not known; must not be one of a, b"),
    ({"fact": "layer.k", "multiple_of": 128}, {"layer.k": 14784}, FAIL,
     "layer.k is 14784; must be a multiple of 128 (remainder 64)"),
    ({"fact": "layer.n", "multiple_of": 64}, {"layer.n": 6840}, FAIL,
     "layer.n is 6840; must be a multiple of 64 (remainder 56)"),
    ({"fact": "layer.k", "multiple_of": 64}, {"layer.k": 14784}, PASS,
     "layer.k is 14784; must be a multiple of 64"),
    ({"fact": "layer.k", "multiple_of": 64}, {"layer.k": None}, UNKNOWN,
     "layer.k is not known; must be a multiple of 64"),
    ({"fact": "quant.group_size", "divides": "layer.k"},
     {"quant.group_size": 128, "layer.k": 14784}, FAIL,
     "quant.group_size is 128; must divide layer.k (14784)"),
    ({"fact": "quant.group_size", "divides": "layer.k"},
     {"quant.group_size": 64, "layer.k": 14784}, PASS,
     "quant.group_size is 64; must divide layer.k (14784)"),
    ({"fact": "quant.group_size", "divides": "layer.k"},
     {"quant.group_size": None, "layer.k": 4096}, UNKNOWN,
     "quant.group_size is not known; must divide layer.k (4096)"),
]


def ids(case: tuple[Row, dict[str, Any], str, str]) -> str:
    return f"{predicate_of(case[0])} {case[2]}"


@pytest.mark.parametrize("row, facts, verdict, text", CASES, ids=map(ids, CASES))
def test_one_predicate_decides_and_words(
    row: Row, facts: dict[str, Any], verdict: str, text: str
) -> None:
    check = evaluate(row, facts, "XKernel", "a/file.py:XKernel.is_supported")
    assert check == Check(f"XKernel.{row['fact']}", verdict, text,
                          "a/file.py:XKernel.is_supported", None, row["fact"], None)


def test_every_predicate_is_tested_with_every_verdict() -> None:
    tested = {(predicate_of(row), verdict) for row, _, verdict, _ in CASES}
    assert tested == {(name, verdict) for name in PREDICATES for verdict in (PASS, FAIL, UNKNOWN)}


def test_the_vocabulary_is_that_of_the_schema() -> None:
    assert list(PREDICATES) == list(PREDICATE_FIELDS)


def test_an_operand_that_is_not_known_makes_the_check_unknown() -> None:
    row = {"fact": "quant.group_size", "divides": "layer.k"}
    check = evaluate(row, {"quant.group_size": 128, "layer.k": None}, "X", "s")
    assert check is not None
    assert check.verdict == UNKNOWN


def test_an_unknown_fact_never_passes_and_never_fails() -> None:
    """An answer that only holds if a library is there is conditional, never silently yes or no."""
    operands: dict[str, Any] = {"in": [None], "not_in": [1], "divides": "b", "equals": None,
                                "not_equals": 1, "min": 1, "max": 1, "multiple_of": 1}
    for name in PREDICATES:
        check = evaluate({"fact": "a", name: operands[name]}, {"a": None, "b": 4}, "X", "s")
        assert check is not None
        assert check.verdict == UNKNOWN


# The row's other fields.


def test_a_row_has_its_own_source_and_words() -> None:
    row = {"fact": "quant.group_size", "in": [128], "source": "b.py:other",
           "says": "Group size ({quant.group_size}) of {layer.k}",
           "plain": "groups of {quant.group_size} have no kernel"}
    check = evaluate(row, {"quant.group_size": 32, "layer.k": 4096}, "X", "a.py:X")
    assert check == Check("X.quant.group_size", FAIL,
                          "quant.group_size is 32; must be one of 128", "b.py:other",
                          "Group size (32) of 4096", "quant.group_size",
                          "groups of 32 have no kernel")


WHEN = {"quant.zero_points": True, "quant.act_type": ["float16", "bfloat16"]}


@pytest.mark.parametrize("zero_points, act, applied", [
    (True, "float16", True), (True, "bfloat16", True), (True, "int8", False),
    (False, "float16", False)])
def test_when_is_every_fact_and_one_of_a_list(zero_points: bool, act: str, applied: bool) -> None:
    facts = {"quant.zero_points": zero_points, "quant.act_type": act, "quant.group_size": 32}
    row = {"fact": "quant.group_size", "in": [128], "when": WHEN}
    assert applies(WHEN, facts) is applied
    assert (evaluate(row, facts, "X", "s") is not None) is applied


def test_a_row_without_when_always_applies() -> None:
    assert applies(None, {}) is True
    assert applies({}, {}) is True


def test_fill_puts_facts_in_and_leaves_other_braces() -> None:
    facts = {"layer.k": 4096, "layer.n": 6144, "quant.weight_type": "uint4b8"}
    assert fill("got ({layer.k}, {layer.n})", facts) == "got (4096, 6144)"
    assert fill("[ScalarType.{quant.weight_type}] {} {0} {X}", facts) == (
        "[ScalarType.uint4b8] {} {0} {X}")


def test_fill_does_not_fill_what_it_filled_in() -> None:
    assert fill("{a.b}", {"a.b": "{c.d}", "c.d": "x"}) == "{c.d}"


@pytest.mark.parametrize("name, value, text", [
    ("gpu.capability", 89, "8.9"), ("gpu.capability", 121, "12.1"),
    ("gpu.capability", [90, 100], "9.0, 10.0"), ("quant.bits", 4, "4"),
    ("lib.conch", True, "true"), ("lib.conch", False, "false"),
    ("env.VLLM_DISABLED_KERNELS", ("A", "B"), "A, B"), ("dtype.model", "bfloat16", "bfloat16")])
def test_show_writes_a_fact_as_people_do(name: str, value: Any, text: str) -> None:
    assert show(name, value) == text
