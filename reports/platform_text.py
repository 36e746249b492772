"""An answer for a platform other than CUDA, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.platforms import ACCEPTED, REFUSED, MethodState, PlatformTrace
from quantplan.dispatch.trace import Trace
from quantplan.reports.columns import columns
from quantplan.reports.naming import engine_named
from quantplan.reports.platform_view import NOT_KNOWN
from quantplan.reports.verdict_text import error_text

UNCHECKED = "read from the engine's source, not checked against hardware"


def platform_text(checkpoint: Checkpoint, deployment: Deployment, trace: PlatformTrace) -> str:
    """Return the whole text of one answer, ending in a newline."""
    parts = [_question(checkpoint, deployment, trace), _verdict(trace)]
    if trace.error:
        parts.append(error_text(Trace(trace.engine, trace.version, trace.dtype, trace.method,
                                      "error", error=trace.error)))
    else:
        parts += [columns(list(_facts(trace))), _attention(trace), *map(_list, trace.lists)]
    parts += [_rules(trace), _methods(trace), *(finding.message for finding in trace.findings),
              "Not known from here: " + "; ".join(NOT_KNOWN) + "."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _question(checkpoint: Checkpoint, deployment: Deployment, trace: PlatformTrace) -> str:
    gpu = trace.place.gpu
    where = trace.place.row["id"] + (f" ({gpu['id']})" if gpu else "")
    words = [f"{checkpoint.name} on {where}", trace.dtype]
    words += [f"--quantization {deployment.quantization}"] if deployment.quantization else []
    if deployment.kv_cache_dtype != "auto":
        words.append(f"--kv-cache-dtype {deployment.kv_cache_dtype}")
    return ", ".join(words)


def _verdict(trace: PlatformTrace) -> str:
    row, method = trace.place.row, trace.method
    engine = engine_named(trace.engine, trace.version)
    asked = f" for {trace.asked}" if trace.asked else ""
    if trace.error:
        words = f"does not start: {trace.error.stage}"
    elif method.resolved is None:
        words = "no quantization; nothing that is known here refuses it"
    else:
        words = (f"{method.resolved}, served by {method.config_class}; nothing that is known here "
                 "refuses it")
    lines = [f"  {engine}{asked}   {words}", f"  platform: {row['id']}, {UNCHECKED}"]
    return "\n".join([*lines, *([f"  assumes {row['assumes']}"] if "assumes" in row else [])])


def _facts(trace: PlatformTrace) -> Iterator[tuple[str, str]]:
    place, kv_cache = trace.place, trace.kv_cache
    yield "FP8", place.fp8_dtype or "; ".join(
        f"{gpu['fp8_dtype']} on {gpu['id']}" for gpu in place.row["gpus"]) + " (--gpu names one)"
    yield "KV cache", kv_cache["resolved"] or (
        f"{kv_cache['requested']}: the source read here does not say which dtype that is")
    least = trace.method.min_capability
    if least is not None and place.row["gates"] and place.gpu is None:
        yield "least capability", f"{least // 10}.{least % 10}, compared where --gpu names a GPU"


def _attention(trace: PlatformTrace) -> str:
    rows = [(part["id"], ", ".join(part.get("kv_cache_dtypes", ())), part.get("if"))
            for part in trace.place.row["attention"]]
    named = any(dtypes for _, dtypes, _ in rows)
    return columns(rows, ("attention", "--kv-cache-dtype that it names" if named else ""))


def _list(part: Mapping[str, Any]) -> str:
    if not part["candidates"]:
        return f"  {part['layers']}: the platform has no kernel; the first of them is refused"
    if len(part["candidates"]) == 1 and "asks" not in part["candidates"][0]:
        return f"  {part['layers']}: {part['candidates'][0]['id']}"
    rows = [(row["id"], " | ".join(row.get("asks", ()))) for row in part["candidates"]]
    return (f"  {part['layers']} choose from, in order, with what each refuses for:\n"
            + columns(rows, indent=4))


def _rules(trace: PlatformTrace) -> str:
    rules = trace.place.row["rules"]
    return columns([(rule["about"], rule["says"]) for rule in rules])


def _methods(trace: PlatformTrace) -> str:
    rows = []
    for state in dict.fromkeys(state.state for state in trace.states):
        names = ", ".join(s.id for s in trace.states if s.state == state)
        rows.append((state, names))
    said = next((s.words for s in trace.states if s.state == REFUSED), None)
    return columns([*rows, *([("in words", said)] if said else [])])


def grid_text(
    table: Mapping[str, Any], grid: Mapping[str, Mapping[str, MethodState]]
) -> str:
    """Return a table of methods and platforms, with the classes of those that are served."""
    platforms = list(table["platforms"])
    rows = [(name, *(_cell(table, platform, row[platform]) for platform in platforms))
            for name, row in grid.items()]
    return (f"{engine_named(table['engine'], table['version'])}: {UNCHECKED}\n"
            "The class of every method whose name is accepted; whether it has kernels there is "
            "another question.\n\n"
            + columns(rows, ("method", *platforms)) + "\n")


def _cell(table: Mapping[str, Any], platform: str, state: MethodState) -> str:
    gpus = table["platforms"][platform].get("drops", {}).get(state.id)
    if gpus:
        return "on " + ", ".join(gpus)
    return str(state.config_class) if state.state == ACCEPTED else state.state
