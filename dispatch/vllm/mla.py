"""The prefill backend of multi-head latent attention
(platforms/interface.py:Platform.get_mla_prefill_backend_cls)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import PASS, applies, evaluate, fill

Facts = Mapping[str, Any]
Row = Mapping[str, Any]


def prefill_backend(
    prefill: Row, backend: Row, facts: Facts
) -> tuple[str | None, str | None]:
    """Return the prefill backend of a layer, or None and the engine's words where it raises."""
    if "no_prefill" in backend and applies(backend["no_prefill"], facts):
        return None, None
    asked = facts["flag.mla_prefill_backend"]
    chosen, error = _asked_for(prefill, asked, facts) if asked else _first(prefill, facts)
    raises = asked is not None or not facts["attn.sparse"]
    return chosen, error if raises else None


def _first(prefill: Row, facts: Facts) -> tuple[str | None, str | None]:
    order = next(o for o in prefill["order"] if applies(o.get("when"), facts))
    rows = {row["id"]: row for row in prefill["backends"]}
    failing = {name: _reasons(rows[name], facts) for name in order["backends"]}
    chosen = next((name for name, reasons in failing.items() if not reasons), None)
    told = ", ".join(f"{rows[name]['name']}: [{', '.join(reasons)}]"
                     for name, reasons in failing.items())
    error = fill(prefill["none_valid"], {**facts, "reasons": "{" + told + "}"})
    return chosen, None if chosen else error


def _asked_for(prefill: Row, asked: str, facts: Facts) -> tuple[str | None, str | None]:
    if asked in prefill["unregistered"]:
        return None, fill(prefill["unregistered_says"], {"backend": asked})
    row = next(r for r in prefill["backends"] if r["name"] == asked)
    reasons = _reasons(row, facts)
    words = {"backend": row["name"], "reasons": str(reasons)}
    return (None, fill(prefill["selected_invalid"], words)) if reasons else (row["id"], None)


def _reasons(row: Row, facts: Facts) -> list[str]:
    checks = [evaluate(r, facts, row["id"], row["file"]) for r in row["requires"]]
    return [check.says or check.text for check in checks if check and check.verdict != PASS]
