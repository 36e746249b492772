"""The walk over a backend list: every class of every backend evaluated, the first pass taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantplan.dispatch.candidates import alternatives, verdict_of
from quantplan.dispatch.predicates import PASS, Check, evaluate, fill
from quantplan.dispatch.trace import Candidate, Selection
from quantplan.dispatch.vllm.experts.order import BackendError, Order, order
from quantplan.dispatch.vllm.experts.plan import Facts, Plan
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]
WITHOUT = "NONE"
"""Stands for the backend of experts that the engine builds without a class."""
SHARED = ("device", "gated", "activation", "scheme", "parallel")
"""What a class that chooses between two parts asks of both
(experts/fallback.py:FallbackExperts)."""


class Walked(NamedTuple):
    """A walk: its selection, the backend and the activation key of the chosen class, and what the
    engine raises when none can serve."""

    selection: Selection
    backend: str | None = None
    act: str | None = None
    error: BackendError | None = None


class Tried(NamedTuple):
    """One class of one backend, and the facts it was asked on."""

    backend: Row
    facts: Facts
    candidate: Candidate


def walk(table: Row, plan: Plan, facts: Facts, given: Mapping[str, str]) -> Walked:
    """Return the walk of a plan's list over `facts`; raises BackendError for a --moe-backend that
    the list does not have."""
    row = table["experts_lists"][plan.list_id]
    asked = {**facts, **plan.quant}
    if asked["flag.moe_backend"] in row.get("flags_batched", ()):
        asked["moe.format"] = "batched_experts"
    asked.update(scheme_facts(table, plan.weight, plan.act, asked))
    found = order(table, row, asked, given, plan.act)
    tried = list(_try_all(table, plan, found, asked))
    return _walked(row, found, tried, asked, plan.first_class)


def scheme_facts(table: Row, weight: str, act: str, facts: Facts) -> dict[str, Any]:
    """Return the facts of a pair of quantization keys, with the texts that the engine prints."""
    keys = table["quant_keys"]
    weight_text, act_text = fill(keys[weight], facts), fill(keys[act], facts)
    return {
        "quant.weight_key": weight, "quant.act_key": act, "quant.scheme": f"{weight} x {act}",
        "quant.weight_text": weight_text, "quant.act_text": act_text,
        "quant.scheme_text": f"{weight_text}x{act_text}",
    }


def _try_all(table: Row, plan: Plan, found: Order, asked: Facts) -> Iterator[Tried]:
    for backend in found.backends:
        facts = {**asked, **scheme_facts(table, plan.weight, _act(backend, plan, asked), asked)}
        refusing = tuple(_checked(backend.get("requires", ()), facts, backend["id"], ""))
        for name in backend["classes"]:
            only = backend.get("checks")
            checks = (*refusing, *class_checks(table, name, facts, only))
            verdict = verdict_of(checks)
            reason = next((c.says or c.text for c in checks if c.verdict != PASS), None)
            source = f"{table['experts_classes'][name]['file']}:{name}"
            yield Tried(backend, facts, Candidate(name, verdict, checks, source, reason))


def _act(backend: Row, plan: Plan, facts: Facts) -> str:
    special = backend.get("act_when")
    if special and all(facts[name] == value for name, value in special["when"].items()):
        return str(special["act"])
    return str(backend.get("act", plan.act))


def class_checks(
    table: Row, name: str, facts: Facts, only: Sequence[str] | None = None
) -> Iterator[Check]:
    """Yield the checks of an experts class in the engine's order; `only` some of them."""
    row = table["experts_classes"][name]
    words = {check["id"]: check for check in table["experts_checks"]}
    for aspect in ("before", *words, "after"):
        if only is not None and aspect not in only:
            continue
        rows = _rows(table, row, aspect)
        if aspect in words:
            says = words[aspect]["says"]
            source = f"{row['file']}:{name}.{words[aspect].get('symbol', 'is_supported_config')}"
            rows = ({"says": says, **r} for r in rows)
        else:
            source = f"{row['file']}:{name}.is_supported_config"
        checks = _checked(rows, facts, name, source)
        yield from _joined(row["joined"], checks) if aspect == "after" and "joined" in row else (
            checks)


def _checked(rows: Any, facts: Facts, name: str, source: str) -> Iterator[Check]:
    checks = (evaluate(row, facts, name, source) for row in rows)
    return (check for check in checks if check is not None)


def _joined(words: str, checks: Iterator[Check]) -> Iterator[Check]:
    """Yield the checks; the first that fails says what all that fail say."""
    found = list(checks)
    failing = [check for check in found if check.verdict != PASS]
    says = fill(words, {"reasons": ", ".join(str(check.says) for check in failing)})
    yield from (check._replace(says=says) if check in failing[:1] else check for check in found)


def _rows(table: Row, row: Row, aspect: str) -> Iterator[Row]:
    """Yield the requirement rows of one aspect of a class: its own and those that a field says."""
    if "parts" in row and aspect in SHARED:
        for part in row["parts"]:
            yield from _rows(table, table["experts_classes"][part], aspect)
        return
    if aspect == "device" and "platform" in row:
        yield {"fact": "gpu.platform", "equals": row["platform"]}
    if aspect == "gated" and not row.get("ungated") and "platform" not in row:
        yield {"fact": "moe.gated", "equals": True}
    if aspect == "activation" and "activations" in row:
        allowed = table["activation_sets"][row["activations"]]["activations"]
        yield {"fact": "moe.activation", "in": allowed}
    if aspect == "hash_routing" and row.get("monolithic"):
        yield {"fact": "moe.hash_routing", "equals": False}
    if aspect == "decomposed" and row.get("monolithic"):
        yield {"fact": "moe.decomposed", "equals": False}
    if aspect == "format":
        yield {"fact": "moe.format", "equals": row.get("activation_format", "standard")}
    if aspect == "batch_invariance" and not row.get("batch_invariant"):
        yield {"fact": "env.VLLM_BATCH_INVARIANT", "equals": False}
    yield from row.get(aspect, ())


def _walked(row: Row, found: Order, tried: list[Tried], asked: Facts, first: bool) -> Walked:
    position = next((i for i, t in enumerate(tried) if t.candidate.verdict == PASS), len(tried))
    candidates = tuple(t.candidate._replace(considered=i <= position)
                       for i, t in enumerate(tried))
    chosen = tried[position] if position < len(tried) else None
    name = chosen.candidate.kernel if chosen else None
    if chosen and first:
        name = chosen.backend["classes"][0]
    others = alternatives(list(candidates[:position]), None)
    error = None if chosen or others or row.get("lenient") else _error(row, found, tried, asked)
    selection = Selection(row["id"], name, candidates, found.steps, others,
                          error.message if error else None)
    if chosen is None:
        return Walked(selection, WITHOUT if row.get("lenient") else None, error=error)
    return Walked(selection, chosen.backend["id"], chosen.facts["quant.act_key"])


def _error(row: Row, found: Order, tried: list[Tried], asked: Facts) -> BackendError:
    """Return what the engine raises: about the last backend that was asked for, or about all."""
    texts = row["texts"]
    words = {**asked, "candidates": str([_shown(b) for b in found.backends]),
             "reasons": "; ".join(_reason(texts, t) for t in tried)}
    last = tried[-1] if tried else None
    if last is not None:
        words |= {"backend": _shown(last.backend), "reason": str(last.candidate.reason)}
    if last is None or not found.pinned:
        return BackendError(row.get("none_type", "NotImplementedError"), fill(texts["none"], words))
    barred = last.candidate.decisive and last.candidate.decisive.id.startswith(
        f"{last.backend['id']}.")
    text = texts["unsupported"]
    if barred:
        text = last.backend.get("refused", text)
    return BackendError(row.get("unsupported_type", "ValueError"), fill(text, words))


def _shown(backend: Row) -> str:
    return str(backend.get("value", backend["id"]))


def _reason(texts: Row, tried: Tried) -> str:
    return fill(texts.get("reason", ""), {
        "backend": _shown(tried.backend), "class": tried.candidate.kernel,
        "reason": str(tried.candidate.reason)})
