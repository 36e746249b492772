"""The laws of platform rows: each is tripped by a bad table, alone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from quantplan.dispatch.platforms import NO_FACTS
from quantplan.tables.load import read_table
from quantplan.tables.platform_laws import CONFIG_FACTS, PLATFORM_LAWS

Table = dict[str, Any]


def platform(table: Table, name: str = "rocm") -> Table:
    """Return the row of the platform."""
    found: Table = next(row for row in table["platforms"] if row["id"] == name)
    return found


def unknown_supported(table: Table) -> None:
    platform(table)["supported"]["methods"].append("gptq")


def unknown_in_a_list(table: Table) -> None:
    platform(table)["lists"][0]["methods"].append("nope")


def dropped_but_unknown(table: Table) -> None:
    platform(table)["drops"]["nope"] = []


def unknown_gpu(table: Table) -> None:
    platform(table)["registers"][0]["gpus"].append("gfx906")


def unknown_fact(table: Table) -> None:
    platform(table, "xpu")["lists"][2]["when"][0]["weights.bits"] = 4


def twice(table: Table) -> None:
    table["platforms"].append(deepcopy(platform(table)))


def two_dtypes(table: Table) -> None:
    platform(table)["fp8_dtype"] = "float8_e4m3fn"


@pytest.mark.parametrize("spoil, words", [
    (unknown_supported, "platforms[rocm]: gptq is no method"),
    (unknown_in_a_list, "platforms[rocm]: nope is no method"),
    (dropped_but_unknown, "platforms[rocm]: nope is no method"),
    (unknown_gpu, "platforms[rocm]: no GPU gfx906"),
    (unknown_fact, "platforms[xpu].lists[mixed_precision]: unknown fact weights.bits"),
    (twice, "platforms: rocm twice"),
    (two_dtypes, "platforms[rocm]: wanted either fp8_dtype or gpus"),
])
def test_a_bad_table_trips_one_law(spoil: Callable[[Table], None], words: str) -> None:
    table = deepcopy(dict(read_table("engines/sglang/0.5.22")))
    spoil(table)
    assert [found for law in PLATFORM_LAWS for found in law(table)] == [words]


def test_the_facts_of_lists_are_the_resolver_s() -> None:
    assert set(NO_FACTS) == CONFIG_FACTS
