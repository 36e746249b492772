"""Answers of one or several engines for a person: verdicts first, where and why they differ, then
the layers in one table, depth on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantplan.dispatch.answers import Answer
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu
from quantplan.dispatch.trace import Finding, Trace
from quantplan.reports.difference import difference
from quantplan.reports.layer_table import layer_table
from quantplan.reports.naming import ENGINE_NAMES, engine_named, engine_words
from quantplan.reports.question import Shown, question
from quantplan.reports.trace_text import depth_text, why_not_text
from quantplan.reports.verdict_text import (
    asked_words,
    conditions_text,
    error_text,
    findings_text,
    verdict,
)
from quantplan.tables.errors import NotKnownError

Asked = tuple[Checkpoint, Gpu, Deployment]


def explain_text(
    asked: Asked, answers: Sequence[Answer], *, verbose: bool = False,
    why_not: Sequence[tuple[str, str]] = (), width: int | None = None,
) -> str:
    """Return the whole text, ending in a newline; `why_not` holds (engine, kernel). Engines whose
    common table is wider than `width` characters have one each."""
    traces = [answer.trace for answer in answers if answer.trace is not None]
    gaps = [answer for answer in answers if answer.trace is None]
    several = len(answers) > 1
    named = max(*(len(asked_words(trace)) for trace in traces),
                *(len(engine_named(gap.engine, gap.version)) for gap in gaps), 0)
    verdicts = [*(verdict(trace, named) for trace in traces), *(_gap(gap, named) for gap in gaps)]
    parts = [question(Shown(*asked, traces[0]), [trace.dtype for trace in traces]),
             "\n".join(verdicts)]
    if len(traces) == 2:
        parts.append("  " + difference(*traces))
    parts += _errors(traces, several)
    standing = [trace for trace in traces if not trace.error]
    if standing:
        parts += _tables(standing, asked[2].tp, _names(standing) if several else (), width)
    for trace in traces:
        parts += [why_not_text(trace, kernel) for engine, kernel in why_not
                  if engine == trace.engine]
    parts += _said(traces) if several else [conditions_text(traces[0]), findings_text(traces[0])]
    parts += [(f"{engine_words(trace)} " if several else "") + depth_text(trace)
              for trace in traces if verbose]
    return "\n\n".join(part for part in parts if part) + "\n"


def _gap(answer: Answer, width: int) -> str:
    """Return why there is no answer, in one line."""
    gap = answer.gap
    assert gap is not None
    engine = engine_named(answer.engine, answer.version).ljust(width)
    told = "not known" if isinstance(gap, NotKnownError) else "not asked"
    return f"  {engine}   {told}: {gap}"


def _errors(traces: Sequence[Trace], several: bool) -> Iterator[str]:
    for trace in traces:
        if trace.error:
            yield (f"{engine_words(trace)} refuses it:\n" if several else "") + error_text(trace)


def _tables(
    traces: Sequence[Trace], tp: int, names: Sequence[str], width: int | None
) -> list[str]:
    whole = layer_table(traces, tp, names)
    if width is None or len(traces) == 1 or max(map(len, whole.splitlines())) <= width:
        return [whole]
    return [layer_table([trace], tp, [name]) for trace, name in zip(traces, names, strict=True)]


def _names(traces: Sequence[Trace]) -> list[str]:
    """Return what heads the columns: engines, with versions where two are of one engine."""
    engines = [trace.engine for trace in traces]
    return [engine_words(trace) if engines.count(trace.engine) > 1
            else ENGINE_NAMES.get(trace.engine, trace.engine) for trace in traces]


def _said(traces: Sequence[Trace]) -> Iterator[str]:
    """Yield what is conditional and what is found: of all engines once, then of each."""
    shared: list[Finding] = [] if len(traces) == 1 else [
        finding for finding in traces[0].findings
        if all(finding in trace.findings for trace in traces[1:])]
    of_all = traces[0]._replace(findings=tuple(shared))
    yield _headed("both" if len(traces) == 2 else "all", findings_text(of_all))
    for trace in traces:
        yield _headed(engine_words(trace), conditions_text(trace))
        yield _headed(engine_words(trace), findings_text(trace, shared))


def _headed(who: str, text: str) -> str:
    return f"{who}:\n{text}" if text else ""
