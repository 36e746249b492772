"""Aligned columns of text."""

from __future__ import annotations

from quantplan.reports.columns import columns


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert columns([("a", 1, "x"), ("bbb", 22, "y")], align="lrl") == (
        "  a     1  x\n  bbb  22  y")


def test_a_header_counts_as_a_row() -> None:
    assert columns([("a", 1)], ("layer", "count"), "lr") == "  layer  count\n  a          1"


def test_no_rows_are_no_text() -> None:
    assert columns([], ("layer",)) == ""


def test_a_short_row_and_an_empty_cell_leave_no_trailing_space() -> None:
    assert columns([("a", None, "c"), ("b",)]) == "  a    c\n  b"


def test_the_indent_is_asked_for() -> None:
    assert columns([("a", "b")], indent=0) == "a  b"
    assert columns([("a", "b")], indent=4) == "    a  b"
