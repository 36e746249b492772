"""Kernels that the engine forces on a layer without walking its candidate list."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.candidates import candidate, phase_checks, walk
from quantplan.dispatch.predicates import FAIL, PASS, UNKNOWN, Check, Facts, applies, fill
from quantplan.dispatch.trace import Alternative, Candidate, Selection, Step

Row = Mapping[str, Any]
PLACEHOLDER = re.compile(r"\{([a-z][\w.]*)\}")


def select(table: Row, family_id: str, facts: Facts) -> Selection:
    """Return the selection of one layer: the family's first pin that applies, or the walk over its
    list. A pin held back by unknown facts stays as an alternative."""
    family = table["families"][family_id]
    asked: list[Candidate] = []
    held: list[Alternative] = []
    for pin in family.get("pins", ()):
        if not applies(pin["when"], facts):
            continue
        checks = phase_checks(table["kernels"][pin["kernel"]], pin["kernel"], "supported", facts)
        unsure = tuple(check.fact for check in checks if check.verdict == UNKNOWN)
        if pin.get("if_supported") and _failed(checks):
            asked.append(candidate(table, family, pin["kernel"], facts))
        elif facts["gpu.capability"] in pin.get("capabilities", (facts["gpu.capability"],)):
            if not (pin.get("if_supported") and unsure):
                forced = _pinned(table, family, pin, checks, asked, facts)
                return forced._replace(alternatives=tuple(held))
            held.append(Alternative(pin["kernel"], unsure))
    walked = walk(table, family_id, facts)
    return walked._replace(alternatives=(*held, *walked.alternatives))


def facts_read(table: Row, family_id: str) -> frozenset[str]:
    """Return the facts that a family's pins and kernels read: layers that agree in them share one
    selection."""
    family = table["families"][family_id]
    pins = family.get("pins", ())
    names = {*family["kernels"], *(pin["kernel"] for pin in pins)}
    kernels = [table["kernels"][name] for name in names]
    parts = [table["kernels"][k[part]] for k in kernels for part in ("base", "fallback")
             if k.get(part)]
    rows = [row for k in (*kernels, *parts) for phase in ("supported", "implement")
            for row in k.get(phase, ())]
    found = {fact for pin in pins for fact in pin["when"]}
    for row in rows:
        found |= {row["fact"], row.get("divides", row["fact"]), *row.get("when", ())}
        for field in ("says", "plain"):
            found.update(PLACEHOLDER.findall(row.get(field, "")))
    return frozenset(found)


def _failed(checks: Sequence[Check]) -> Check | None:
    return next((check for check in checks if check.verdict == FAIL), None)


def _pinned(  # noqa: PLR0917 - what select() knows when it finds the pin
    table: Row, family: Row, pin: Row, checks: Sequence[Check], asked: Sequence[Candidate],
    facts: Facts,
) -> Selection:
    """Return the selection of a forced kernel: VLLM_DISABLED_KERNELS and can_implement are not
    asked of it."""
    name = pin["kernel"]
    error = _error(family, name, checks)
    forced = Candidate(name, FAIL if error else PASS, tuple(checks),
                       f"{table['kernels'][name]['file']}:{name}", error)
    told = {name, *(other.kernel for other in asked)}
    others = [candidate(table, family, other, facts)._replace(considered=False)
              for other in family["kernels"] if other not in told]
    step = Step("Pinned", name, pin["because"], pin["source"])
    return Selection(family["id"], None if error else name, (*asked, forced, *others), (step,),
                     error=error)


def _error(family: Row, name: str, checks: Sequence[Check]) -> str | None:
    texts, failed = family["texts"], _failed(checks)
    if name not in family["kernels"]:
        return fill(texts["pin_outside"], {"kernel": name})
    if failed is None:
        return None
    return fill(texts["pin_unsupported"], {"kernel": name, "reason": failed.says or failed.text})
