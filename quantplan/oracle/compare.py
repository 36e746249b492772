"""Our answer and the engine's, field by field: where they differ, and both reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.reports.explain_view import EXPERT
from quantplan.tables.record import NamedTuple

TOLD_BY_SOME = ("act", "fused", "kernel_backend", "moe_runner_backend")
"""Fields of a layer that are compared where the engine's worker tells them."""

LAYER_FIELDS = ("module", "method", "scheme", "family", "mode", "n", "k", "attn_backend",
                "kv_cache_dtype", "prefill_backend")
"""Fields of a layer that are compared as they are; kernels and experts have more to say."""

UNTOLD = frozenset({"mode", "family", "attn_backend", "kernel_backend"})
"""Fields that the engine does not always tell: none is no answer."""


FORWARD = "first forward"
FLAT_BRACES = re.compile(r"(?<={)'[^'{}]*'[^{}]*(?=})")


class Difference(NamedTuple):
    """One place where the answers differ, with the reasons of both sides as far as they have any.

    `where` is a layer's path with * for its index, or "" for the whole model.
    """

    where: str
    field: str
    ours: Any
    engines: Any
    our_reason: str | None = None
    our_source: str | None = None
    engine_reason: str | None = None
    indices: tuple[int, ...] = ()
    explained: str | None = None


EXPLAINING = "server-sets-otherwise"
"""The finding that says what the engine's server makes of a layer where its class alone, which our
answer follows, would make something else."""


def differences(ours: Mapping[str, Any], engines: Mapping[str, Any]) -> list[Difference]:
    """Return every difference between an explanation (explain.v1.json) and the worker's answer;
    layers that differ alike are one difference with their indices."""
    built = ours["outcome"] != "error" or _refused_dtype(ours, engines)
    if not built or engines["outcome"] == "error":
        return list(_refusals(ours, engines))
    return [*_model_differences(ours, engines),
            *_explained(ours, _merged(_layer_differences(ours, engines)))]


def _explained(ours: Mapping[str, Any], found: list[Difference]) -> Iterator[Difference]:
    """Yield the differences, those of layers that a finding explains with its words."""
    layers = {row["path"] for row in ours["layers"] if EXPLAINING in row["findings"]}
    words = {row["id"]: row["message"] for row in ours["findings"]} if layers else {}
    for difference in found:
        explained = words.get(EXPLAINING) if difference.where in layers else None
        yield difference._replace(explained=explained)


def _refused_dtype(ours: Mapping[str, Any], engines: Mapping[str, Any]) -> bool:
    """Return whether both say that the engine's worker refuses the dtype of a model that could be
    built: its layers are compared all the same."""
    refused = engines.get("dtype_refused")
    return refused is not None and (ours["error"] or {}).get("message") == refused


def _model_differences(ours: Mapping[str, Any], engines: Mapping[str, Any]
                       ) -> Iterator[Difference]:
    method = ours["method"]
    steps = "; ".join(step["because"] for step in method["steps"]) or None
    source = method["steps"][-1]["source"] if method["steps"] else None
    for field, mine, its in (
        ("method", method["resolved"], engines.get("method")),
        ("config_class", method["config_class"], engines.get("config_class")),
        ("min_capability", method["min_capability"], engines.get("min_capability")),
        ("dtype", ours["deployment"]["dtype"], engines.get("dtype")),
        *_cache(ours, engines),
    ):
        if mine != its:
            yield Difference("", field, mine, its, steps, source)
    refused = engines.get("dtype_refused")
    if refused and not _refused_dtype(ours, engines):
        yield Difference("", "dtype refused", None, refused, steps, source)


def _cache(ours: Mapping[str, Any], engines: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the KV cache's dtype and page size, where the worker tells those of the whole model."""
    for field, own in (("kv_cache_dtype", "resolved"), ("page_size", "page_size")):
        if field in engines:
            yield field, ours["kv_cache"].get(own), engines[field]


def _refusals(ours: Mapping[str, Any], engines: Mapping[str, Any]) -> Iterator[Difference]:
    mine, its = ours["error"] or {}, engines.get("error") or {}
    if ours["outcome"] != engines["outcome"] and "error" in (ours["outcome"], engines["outcome"]):
        yield Difference(
            "", "outcome", ours["outcome"], engines["outcome"], _words(mine), mine.get("source"),
            _words(its))
        return
    for field in ("type", "message"):
        if _ordered(mine.get(field)) != _ordered(its.get(field)):
            yield Difference("", f"error {field}", mine.get(field), its.get(field),
                             mine.get("stage"), mine.get("source"), its.get("source"))
    if its.get("layer") and mine.get("layer") != its["layer"]:
        yield Difference("", "error layer", mine.get("layer"), its["layer"], _words(mine),
                         mine.get("source"), its.get("source"))


def _ordered(text: str | None) -> str | None:
    """Return a message with its sets of names in order, theirs is another in every process, and
    its mappings, theirs is the file's; without blanks around it."""
    return text and FLAT_BRACES.sub(lambda match: ", ".join(sorted(match[0].split(", "))),
                                    text.strip())


def _words(error: Mapping[str, Any]) -> str | None:
    if not error:
        return None
    place = f" [{error['layer']}]" if error.get("layer") else ""
    return f"{error['type']}: {error['message']}{place}"


def _layer_differences(ours: Mapping[str, Any], engines: Mapping[str, Any]
                       ) -> Iterator[tuple[int | None, Difference]]:
    mine = {row["path"].replace("*", str(index), 1): row for row in ours["layers"]
            for index in row["indices"] or [""]}
    asked: set[str] = set()
    fails = any(finding["stage"] == FORWARD and finding["severity"] == "error"
                for finding in ours.get("findings", ()))
    for its in engines["layers"]:
        path, index = starred(its["path"])
        key = its["path"] if its["path"] in mine else EXPERT.sub("*", its["path"])
        row = mine.get(key)
        asked.add(key)
        if row is None:
            yield index, Difference(path, "layer", None, its["module"])
            continue
        for difference in row_differences(path, row, its):
            if not (fails and difference.field == FORWARD):  # it ends at the layer that is told
                yield index, difference
    for concrete, row in mine.items():
        if concrete in asked:
            continue
        path, index = starred(concrete)
        yield index, Difference(path, "layer", row["module"], None)


def starred(path: str) -> tuple[str, int | None]:
    """Return a concrete path with * for its first number, and that."""
    number = re.search(r"(?<=\.)\d+(?=\.|$)", path)
    if number is None:
        return path, None
    return f"{path[:number.start()]}*{path[number.end():]}", int(number[0])


def row_differences(path: str, ours: Mapping[str, Any], engines: Mapping[str, Any]
                    ) -> Iterator[Difference]:
    """Yield the differences of one layer."""
    for field in LAYER_FIELDS:
        mine, its = ours.get(field), engines.get(field)
        if mine != its and not (its is None and field in UNTOLD):
            yield Difference(path, field, mine, its, *_our_reason(ours))
    for field in TOLD_BY_SOME:
        mine, its = ours.get(field), engines.get(field)
        if field in engines and mine != its and not (its is None and field in UNTOLD):
            yield Difference(path, field, mine, its, *_our_reason(ours))
    if engines.get("forward_error") and not ours["findings"]:
        yield Difference(path, FORWARD, None, engines["forward_error"])
    experts = list(_experts(path, ours.get("experts") or {}, engines.get("experts") or {}))
    yield from experts or _choice(path, ours, engines)


def _our_reason(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    chosen = next((c for c in row["candidates"] if c["kernel"] == row["kernel"]), None)
    return row.get("why"), chosen and chosen["source"]


def _choice(path: str, ours: Mapping[str, Any], engines: Mapping[str, Any]
            ) -> Iterator[Difference]:
    """Yield what differs in the chosen kernel, the kernels turned down, and the reasons why."""
    if "attn_backend" in engines or "attn_backend" in ours:
        return
    if "rejected" not in engines:  # its worker tells what was chosen, not between what
        if ours["kernel"] != engines.get("kernel", ours["kernel"]):
            yield Difference(path, "kernel", ours["kernel"], engines["kernel"],
                             *_why_not(ours, engines["kernel"]))
        return
    experts = engines.get("experts")
    reasons = dict([*engines["rejected"], *(experts["rejected"] if experts else ())])
    if ours["kernel"] != engines["kernel"]:
        why, source = _why_not(ours, engines["kernel"])
        yield Difference(path, "kernel", ours["kernel"], engines["kernel"], why, source,
                         _reason(reasons, ours["kernel"]))
        return
    mine = {row["kernel"]: row for row in ours["rejected"]}
    # Experts of a backend that is passed over as a whole are never asked.
    told = [kernel for kernel in mine if kernel in reasons] if experts else list(mine)
    if told != list(reasons):
        yield Difference(path, "rejected", list(mine), list(reasons))
        return
    for kernel, reason in reasons.items():
        row = mine[kernel]
        if reason is not None and reason.rstrip(".") not in str(row["engine_reason"]):
            yield Difference(path, f"reason of {kernel}", row["engine_reason"], reason,
                             row["reason"], row["source"])


def _why_not(ours: Mapping[str, Any], kernel: str | None) -> tuple[str | None, str | None]:
    """Return why we did not choose the engine's kernel, and the source of that."""
    row = next((c for c in ours["candidates"] if c["kernel"] == kernel), None)
    if row is None:
        return f"{kernel} is not in our list" if kernel else ours.get("why"), None
    failed = next((check for check in row["checks"] if check["verdict"] != "pass"), None)
    if failed is None:
        return f"{kernel} could serve the layer; {ours['kernel']} comes first", row["source"]
    return failed["text"], failed["source"]


def _reason(reasons: Mapping[str, str | None], kernel: str | None) -> str | None:
    """Return the engine's reason against our choice."""
    if kernel is None or kernel not in reasons:
        return None
    return reasons[kernel] or (f"{kernel} was passed over unasked: it is disabled, or the device "
                               "or the scheme is not its own")


def _experts(path: str, ours: Mapping[str, Any], engines: Mapping[str, Any]
             ) -> Iterator[Difference]:
    if not engines or engines.get("class") is None:
        return
    reasons = dict(engines["rejected"])
    for field in ("class", "backend"):
        mine, its = ours.get(field), engines[field]
        if mine != its and its is not None:
            yield Difference(path, f"experts {field}", mine, its, ours.get("why"), None,
                             _reason(reasons, ours.get("class")))


def _merged(found: Iterator[tuple[int | None, Difference]]) -> list[Difference]:
    """Return differences that several layers share once, with the layers' indices."""
    merged: dict[str, tuple[Difference, list[int]]] = {}
    for index, difference in found:
        _, indices = merged.setdefault(repr(difference), (difference, []))
        if index is not None:
            indices.append(index)
    return [difference._replace(indices=tuple(indices)) for difference, indices in merged.values()]
