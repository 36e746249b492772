"""Which backend an attention module gets: its list in the engine's order, or the one asked for,
each with every requirement evaluated (platforms/cuda.py:CudaPlatformBase.get_attn_backend_cls)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.candidates import alternatives, mark_considered, verdict_of
from quantplan.dispatch.predicates import FAIL, PASS, UNKNOWN, Check, evaluate, fill, holds
from quantplan.dispatch.trace import Alternative, Candidate, Selection, Step
from quantplan.tables.errors import NotKnownError

Facts = Mapping[str, Any]
Row = Mapping[str, Any]
FORCED = ("attention", "mla")
"""Lists of which --attention-backend takes the whole place, once it is found valid."""


def select(attention: Row, name: str, facts: Facts) -> Selection:
    """Return the selection of list `name`; `error` holds the engine's words where none is valid."""
    asked, option = _asked(name, facts)
    if asked is None:
        return _walk(attention, name, facts)
    if name == "vision":
        return _encoder(attention, asked, facts)
    if name in FORCED:
        return _asked_for(attention, name, (asked, option), facts)
    row = next((r for r in attention["forced"] if r["list"] == name and asked in r["named"]), None)
    if row is None:
        return _walk(attention, name, facts)
    if "says" in row:
        return Selection(name, None, (), (), (), fill(row["says"], {"backend": asked}))
    step = Step("Pinned", row["backend"], f"--attention-backend {asked}", row["source"])
    chosen = _candidate(attention, row["backend"], facts, ())
    return Selection(name, row["backend"], (chosen,), (step,))


def _asked(name: str, facts: Facts) -> tuple[str | None, str]:
    """Return the backend asked for in list `name`, and the option that asks."""
    if name == "vision":
        asked: str | None = facts["flag.mm_encoder_attn_backend"]
        return asked, "--mm-encoder-attn-backend"
    kind, per_kind = facts["attn.kind"], facts["flag.backend_per_kind"]
    if name in FORCED and kind in per_kind:
        return per_kind[kind], f"--attention-config backend_per_kind {kind}:"
    return facts["flag.attention_backend"], "--attention-backend"


def _encoder(attention: Row, asked: str, facts: Facts) -> Selection:
    """Return the backend asked for encoders, of which nothing else is asked."""
    encoder = attention["encoder"]
    if asked not in encoder["chosen"]:
        row = next(r for r in encoder["refused"] if holds(r, facts))
        return Selection("vision", None, (), (), (), fill(row["says"], {"backend": asked}))
    step = Step("Pinned", asked, f"--mm-encoder-attn-backend {asked}", encoder["source"])
    return Selection("vision", asked, (_candidate(attention, asked, facts, ()),), (step,))


def _walk(attention: Row, name: str, facts: Facts) -> Selection:
    order = next(o for o in attention["order"] if o["list"] == name and holds(o, facts))
    tried = [_candidate(attention, backend, facts, order.get("aspects"))
             for backend in order["backends"]]
    chosen = next((c.kernel for c in tried if c.verdict == PASS), None)
    tried = mark_considered(tried, chosen)
    error = None if chosen else _none_valid(attention, tried, facts)
    return Selection(name, chosen, tuple(tried), (), alternatives(tried, chosen), error)


def _none_valid(attention: Row, tried: Sequence[Candidate], facts: Facts) -> str:
    reasons = ", ".join(f"{c.kernel}: [{c.reason}]" for c in tried)
    return fill(attention["none_valid"], {**facts, "reasons": "{" + reasons + "}"})


def _asked_for(
    attention: Row, name: str, asking: tuple[str, str], facts: Facts
) -> Selection:
    asked, option = asking
    step = Step("Pinned", asked, f"{option} {asked}", attention["source"])
    if asked in attention["unregistered"]:
        words = fill(attention["unregistered_says"], {"backend": asked})
        return Selection(name, None, (), (step,), (), words)
    if asked not in attention["backends"]:
        raise NotKnownError(f"{option} {asked}", wanted="one of " + ", ".join(
            n for n in attention["names"] if n in attention["backends"]),
            hint="It is made for other devices; on an NVIDIA GPU it is not in the table.")
    tried = _candidate(attention, asked, facts, None)
    if tried.verdict == PASS:
        return Selection(name, asked, (tried,), (step,))
    unknown = tuple(c.fact for c in tried.checks if c.verdict == UNKNOWN)
    held_back = (Alternative(asked, unknown),) if tried.verdict == UNKNOWN else ()
    return Selection(name, None, (tried,), (step,), held_back,
                     _asked_invalid(attention, asked, facts))


def _asked_invalid(attention: Row, asked: str, facts: Facts) -> str:
    row = attention["backends"][asked]
    failing, imported = _reasons(attention, row, facts, None)
    shown = "[" + ", ".join(failing) + "]" if imported else str(failing)
    return fill(attention["selected_invalid"], {"backend": asked, "reasons": shown})


def _candidate(
    attention: Row, name: str, facts: Facts, aspects: Sequence[str] | None
) -> Candidate:
    row = attention["backends"][name]
    checks = tuple(check for rows in _phases(attention, row, facts, aspects)
                   for check in _evaluated(rows, row, facts))
    reason = ", ".join(_reasons(attention, row, facts, aspects)[0]) or None
    return Candidate(name, verdict_of(checks), checks, f"{row['file']}:{row['symbol']}", reason)


def _phases(
    attention: Row, row: Row, facts: Facts, aspects: Sequence[str] | None
) -> tuple[Sequence[Row], Sequence[Row], Sequence[Row]]:
    """Return what the file imports, what is asked aspect by aspect, and what in combination."""
    if aspects is not None:
        wanted = {a["says"] for a in attention["aspects"] if a["id"] in aspects}
        own = [r for r in row.get("requires", ()) if r["says"] in wanted]
        return row.get("imports", ()) if aspects else (), own, ()
    own = [*row.get("requires", ()), *(
        {"fact": a["fact"], "equals": False, "says": a["says"], "source": attention["source"]}
        for a in attention["aspects"] if _held_against(a, row, facts))]
    places = [a["says"] for a in attention["aspects"]]
    return (row.get("imports", ()), sorted(own, key=lambda r: places.index(r["says"])),
            row.get("combination", ()))


def _held_against(aspect: Row, row: Row, facts: Facts) -> bool:
    """Return whether an aspect that this layer has is one that the backend lacks.

    A backend whose support depends on the device has requirement rows of the aspect instead.
    """
    if not facts.get(aspect.get("fact", ""), False) or aspect["id"] in row["supports"]:
        return False
    return all(own["says"] != aspect["says"] for own in row.get("requires", ()))


def _evaluated(rows: Sequence[Row], row: Row, facts: Facts) -> list[Check]:
    source = f"{row['file']}:{row['symbol']}"
    found = [evaluate(r, facts, row["id"], source) for r in rows]
    return [check for check in found if check is not None]


def _reasons(
    attention: Row, row: Row, facts: Facts, aspects: Sequence[str] | None
) -> tuple[list[str], bool]:
    """Return the engine's reasons in its order, and whether the file's import is the reason."""
    imports, own, together = (
        [c.says or c.text for c in _evaluated(rows, row, facts) if c.verdict != PASS]
        for rows in _phases(attention, row, facts, aspects))
    return (imports, True) if imports else ([*dict.fromkeys(own), *together[:1]], False)


def refusal(row: Row, facts: Facts) -> tuple[Row, Check] | None:
    """Return the first row of what a backend's or a module's constructor raises, with its check,
    or None."""
    heads = facts.get("attn.heads", 0)
    padded = next((n for n in row.get("pads_heads", ()) if n >= heads), None)
    return first_failing(row, "refuses", {**facts, "attn.padded_heads": padded})


def without_code(row: Row, facts: Facts) -> Check | None:
    """Return the check by which a chosen backend has no machine code for the device, or None."""
    found = first_failing(row, "runs_on", facts)
    return found[1] if found else None


def first_failing(row: Row, phase: str, facts: Facts) -> tuple[Row, Check] | None:
    """Return the first requirement of a phase that fails, with its check, or None."""
    for requirement in row.get(phase, ()):
        check = evaluate(requirement, facts, row["id"], row.get("file", row.get("source", "")))
        if check is not None and check.verdict == FAIL:
            return requirement, check
    return None
