"""The stacked bar, as text and as SVG: lengths, figures, and what does not fit."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from quantplan.planner.segments import KINDS, MemoryBar, Segment, shares, stacked
from quantplan.reports.memory_bar import memory_bars
from quantplan.reports.memory_svg import WIDTH, memory_svg

GIB = 2**30
SVG = "{http://www.w3.org/2000/svg}"
HALF = stacked("", 80 * GIB, [Segment("weights", 40 * GIB), Segment("KV cache", 40 * GIB)])
FULL = stacked("", 24 * GIB, [Segment("weights", 36 * GIB)])


def test_lengths_are_in_proportion() -> None:
    assert memory_bars([HALF], 46).splitlines() == [
        f"  [{'#' * 20}{'=' * 20}]",
        "  # weights 40.00 GiB (50 %)",
        "  = KV cache 40.00 GiB (50 %)"]


def test_what_does_not_fit_passes_the_gpu_s_end() -> None:
    """24 of 36 GiB are two thirds of 36 characters."""
    bar, *legend = memory_bars([FULL], 42).splitlines()
    assert bar == f"  [{'#' * 24}|{'#' * 12}]"
    assert legend == ["  # weights 36.00 GiB (150 %)", "  | 24.00 GiB, the GPU's memory"]


def test_ranks_are_named() -> None:
    first, second = HALF._replace(label="rank 0"), HALF._replace(label="rank 1")
    lines = memory_bars([first, second], 100).splitlines()
    assert [line[:10] for line in lines] == ["  rank 0 [", "  rank 1 [", "  rank 0: ", "  rank 1: "]


SIZES = st.lists(st.integers(1, 2**40), min_size=1, max_size=len(KINDS))


@given(SIZES, st.integers(20, 200), st.integers(0, 2**40))
def test_cells_are_whole_and_everything_is_seen(
    sizes: list[int], cells: int, rest: int
) -> None:
    segments = tuple(Segment(kind, size) for kind, size in zip(KINDS, sizes, strict=False))
    bar = MemoryBar("", sum(sizes) + rest, segments)
    taken = shares(bar, cells)
    assert min(taken) >= 1
    wanted = round(bar.used_bytes * cells / bar.scale_bytes)
    assert sum(taken) == max(wanted, len(taken))
    if not rest:
        assert all(abs(count - size * cells / sum(sizes)) < len(KINDS)
                   for count, size in zip(taken, sizes, strict=True))


def test_the_svg_is_xml_and_its_rectangles_fill_the_bar() -> None:
    root = ElementTree.fromstring(memory_svg("<model> & co", [HALF]))
    assert root.find(f"{SVG}title") is not None
    rectangles = root.findall(f"{SVG}rect")
    assert sum(float(r.get("width", "0")) for r in rectangles) == WIDTH - 24
    assert [r.findtext(f"{SVG}title") for r in rectangles] == [
        "weights 40.00 GiB", "KV cache 40.00 GiB"]
    assert "40.00 GiB" in str(root.findtext(f"{SVG}desc"))
    assert root.findtext(f"{SVG}text") == "<model> & co"
