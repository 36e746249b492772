"""The memory of each GPU as a stacked bar in SVG: one file, no script, no font and no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from quantplan.planner.segments import MemoryBar, Segment
from quantplan.reports.sizes_text import gib

WIDTH, ROW, BAR, MARGIN = 720, 92, 32, 12
"""Pixels: the picture's width, one rank's row, its bar's height, the space around."""
COLOURS = {"weights": "#0072b2", "activations": "#e69f00", "CUDA graphs": "#cc79a7",
           "non-torch": "#d55e00", "KV cache": "#009e73", "outside": "#999999", "free": "#dddddd"}
"""Kind -> colour, of Okabe and Ito's palette (Color Universal Design, 2008), which people with
colour vision deficiencies can tell apart."""
IN_A_LINE = 4
"""Figures in one line of a legend."""
STYLE = ("text{font:12px system-ui,sans-serif;fill:currentColor}svg{color:#222;background:#fff}"
         "@media(prefers-color-scheme:dark){svg{color:#ddd;background:#111}}")


def memory_svg(title: str, bars: Sequence[MemoryBar]) -> str:
    """Return an SVG document of the bars; `title` and each segment's figure are texts in it."""
    height = 2 * MARGIN + 20 + ROW * len(bars)
    body = "".join(part for place, bar in enumerate(bars)
                   for part in _row(bar, MARGIN + 20 + place * ROW))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-labelledby="title desc"><title id="title">{escape(title)}</title>'
            f'<desc id="desc">{escape("; ".join(map(_words, bars)))}</desc>'
            f'<style>{STYLE}</style><text x="{MARGIN}" y="{MARGIN + 8}">{escape(title)}</text>'
            f'{body}</svg>\n')


def _words(bar: MemoryBar) -> str:
    parts = ", ".join(map(_figure, bar.segments))
    return f"{bar.label + ': ' if bar.label else ''}{gib(bar.total_bytes)} GiB: {parts}"


def _figure(segment: Segment) -> str:
    return f"{segment.kind} {gib(segment.bytes)} GiB"


def _row(bar: MemoryBar, top: int) -> Iterator[str]:
    inner, start = WIDTH - 2 * MARGIN, 0
    for segment in bar.segments:
        left = MARGIN + start * inner / bar.scale_bytes
        wide = segment.bytes * inner / bar.scale_bytes
        start += segment.bytes
        yield (f'<rect x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{BAR}" '
               f'fill="{COLOURS[segment.kind]}"><title>{escape(_figure(segment))}</title></rect>')
    end = MARGIN + bar.total_bytes * inner / bar.scale_bytes
    yield (f'<path d="M{end:.2f} {top - 3}v{BAR + 6}" stroke="currentColor" stroke-width="2"/>')
    for place in range(0, len(bar.segments), IN_A_LINE):
        yield _legend("" if place else bar.label, bar.segments[place:place + IN_A_LINE],
                      top + BAR + 18 + place // IN_A_LINE * 16)


def _legend(label: str, segments: Sequence[Segment], y: int) -> str:
    """Return one line of a legend: a square of the colour before each figure."""
    spans = "".join(f'<tspan fill="{COLOURS[s.kind]}">&#9632; </tspan><tspan>{escape(_figure(s))}'
                    '   </tspan>' for s in segments)
    shown = f"<tspan>{escape(label)}   </tspan>" if label else ""
    return f'<text x="{MARGIN}" y="{y}" xml:space="preserve" font-size="11">{shown}{spans}</text>'
