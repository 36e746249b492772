"""The ordered candidate list: order it as the engine does, evaluate all, take the first pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import (
    FAIL,
    PASS,
    UNKNOWN,
    Check,
    Facts,
    Unreadable,
    evaluate,
    fill,
)
from quantplan.dispatch.trace import Alternative, Candidate, EngineError, Refusal, Selection, Step
from quantplan.tables.errors import UsageError
from quantplan.tables.near_names import did_you_mean, near_names

Row = Mapping[str, Any]


def walk(table: Row, family_id: str, facts: Facts) -> Selection:
    """Return the selection of family `family_id` of an engine table for one layer's `facts`.

    `facts` must hold every fact named by the family's kernels, plus `flag.linear_backend` with
    its words and `env.VLLM_DISABLED_KERNELS` (a tuple of class names). Raises Refusal where the
    engine raises on its way to the choice: at a variable whose value cannot be read.
    """
    family = table["families"][family_id]
    names, steps = order(table, family, facts)
    candidates = [candidate(table, family, name, facts) for name in names]
    chosen = next((c.kernel for c in candidates if c.verdict == PASS), None)
    candidates = mark_considered(candidates, chosen)
    check_readable(candidates, facts)
    return Selection(
        family_id, chosen, tuple(candidates), tuple(steps),
        alternatives(candidates, chosen),
        None if chosen else _no_kernel(family, candidates, facts),
    )


def order(table: Row, family: Row, facts: Facts) -> tuple[list[str], list[Step]]:
    """Return the family's kernel names in the order the engine tries them, and why it changed."""
    names: list[str] = list(family["kernels"])
    steps: list[Step] = []
    promotion = table["promotion"]
    if facts["gpu.capability"] in promotion["capabilities"]:
        names = promote(names, promotion, steps)
    return _filter_backend(table, family, names, facts, steps), steps


def promote(names: list[str], promotion: Row, steps: list[Step]) -> list[str]:
    """Return the names, the first that holds `move` right in front of the first that holds
    `before`, in any case (priority.py:prioritize_humming)."""
    move, before_this = promotion["move"].lower(), promotion["before"].lower()
    first = next((n for n in names if move in n.lower()), None)
    before = next((n for n in names if before_this in n.lower()), None)
    if first is None or before is None or names.index(first) < names.index(before):
        return names
    rest = [n for n in names if n != first]
    rest.insert(rest.index(before), first)
    steps.append(Step("Reordered", f"{first} before {before}", promotion["because"],
                      promotion["source"]))
    return rest


def _filter_backend(
    table: Row, family: Row, names: list[str], facts: Facts, steps: list[Step]
) -> list[str]:
    backend, asked = facts["flag.linear_backend"], facts["flag.linear_backend_words"]
    if backend == "auto" or not family.get("backend_filter", True):
        return names
    source = table["linear_backend_source"]
    kept = [n for n in names if n in table["linear_backends"].get(backend, ())]
    if not kept and "none_left" not in family:
        steps.append(Step("Filtered", "nothing", f"{asked} has no kernel for this layer type; the "
                          "whole list is tried", source))
        return names
    steps.append(Step("Filtered", f"only {', '.join(kept)}" if kept else "nothing", asked, source))
    return kept


def candidate(table: Row, family: Row, name: str, facts: Facts) -> Candidate:
    """Return one kernel of a family's list with every check evaluated."""
    disabled = _disabled(name, facts, table["disabled_source"])
    checks = (*disabled, *_checks(table, name, facts))
    verdict = verdict_of(checks)
    reason = None if verdict == PASS else _reason(table, family, name, checks, facts)
    return Candidate(name, verdict, checks, f"{table['kernels'][name]['file']}:{name}", reason)


def _disabled(name: str, facts: Facts, source: str) -> tuple[Check, ...]:
    if name not in facts["env.VLLM_DISABLED_KERNELS"]:
        return ()
    return (Check(f"{name}.disabled", FAIL, f"env.VLLM_DISABLED_KERNELS names {name}", source,
                  fact="env.VLLM_DISABLED_KERNELS"),)


def _checks(table: Row, name: str, facts: Facts) -> tuple[Check, ...]:
    kernel = table["kernels"][name]
    found: list[Check] = []
    for phase in ("supported", "implement"):
        for part in (name, kernel.get("base"), kernel.get("fallback")):
            if part is not None:
                found += phase_checks(table["kernels"][part], part, phase, facts)
    return tuple(found)


def phase_checks(kernel: Row, name: str, phase: str, facts: Facts) -> list[Check]:
    """Return the checks of one phase ("supported", "implement") of one kernel class."""
    symbol = {"supported": "is_supported", "implement": "can_implement"}[phase]
    source = f"{kernel['file']}:{name}.{symbol}"
    found = []
    if phase == "supported" and "min_capability" in kernel:
        row = {"fact": "gpu.capability", "min": kernel["min_capability"]}
        source = f"{kernel['file']}:{name}.get_min_capability"
        found.append(evaluate(row, facts, name, source))
    found += [evaluate(row, facts, name, source) for row in kernel.get(phase, ())]
    return [check for check in found if check is not None]


def listed_candidate(name: str, row: Row, facts: Facts, source: str) -> Candidate:
    """Return a candidate whose row alone says what it requires; its checks cite `source`."""
    checks = tuple(check for need in row.get("requires", ())
                   if (check := evaluate(need, facts, name, source)) is not None)
    return Candidate(name, verdict_of(checks), checks, source)


def verdict_of(checks: tuple[Check, ...]) -> str:
    """Return fail if any check fails, else unknown if any is unknown, else pass."""
    verdicts = {check.verdict for check in checks}
    return FAIL if FAIL in verdicts else UNKNOWN if UNKNOWN in verdicts else PASS


def _reason(
    table: Row, family: Row, name: str, checks: tuple[Check, ...], facts: Facts
) -> str:
    texts, kernel = family["texts"], table["kernels"][name]
    words = {"kernel": name, "minimum": str(kernel.get("min_capability")),
             "capability": str(facts["gpu.capability"])}
    first = next(check for check in checks if check.verdict != PASS)
    if first.id.endswith(".disabled"):
        return fill(texts["disabled"], words)
    if first.says is None and "min_capability" in kernel:
        return fill(texts["capability"], words)
    words["reason"] = _engine_words(table, kernel, facts) or first.says or first.text
    return fill(texts["reason"], words)


def _engine_words(table: Row, kernel: Row, facts: Facts) -> str | None:
    """Return a two-part kernel's combined reason: both parts are asked, phase by phase
    (kernels/linear/scaled_mm/BlockScaledMMLinearKernel.py:Fp8BlockScaledDynamicMMLinearKernel)."""
    if "base" not in kernel:
        return None
    for phase, verb in (("supported", "is not supported"), ("implement", "cannot implement")):
        parts = []
        for role in ("base", "fallback"):
            part = kernel[role]
            says = _first_failure(phase_checks(table["kernels"][part], part, phase, facts))
            if says:
                parts.append(f"{role} {verb} due to {says}")
        if parts:
            return "; ".join(parts)
    return None


def _first_failure(checks: list[Check]) -> str | None:
    return next((check.says for check in checks if check.verdict != PASS), None)


def kernel_ids(table: Row) -> list[str]:
    """Return the kernel classes, attention backends and experts classes of an engine table; the
    operators and attention backends of SGLang's."""
    if "operators" in table:
        operators = {str(row["kernel"]) for part in table["operators"].values()
                     for row in part["operators"]}
        backends = {str(row["backend"]) for listed in table["attention"]["lists"]
                    for row in listed["backends"]}
        return sorted(operators | backends)
    return [*table["kernels"], *table["attention"]["backends"], *table["experts_classes"]]


def kernel_named(table: Row, text: str) -> str:
    """Return the kernel class, attention backend or experts class that TEXT names, in any case, or
    by a beginning that only one has; raise UsageError for none or several."""
    known = kernel_ids(table)
    folded = text.lower()
    exact = [name for name in known if name.lower() == folded]
    begins = exact or [name for name in known if name.lower().startswith(folded)]
    if len(begins) == 1:
        return begins[0]
    near = begins or near_names(text, known, count=4, cutoff=0.5)
    raise UsageError(f"--why-not {text}", wanted="a kernel class, an attention backend or "
                     "an experts class",
                     hint=did_you_mean(near[:4])
                     or "`quantplan explain MODEL -v` lists the candidates.")


def mark_considered(candidates: list[Candidate], chosen: str | None) -> list[Candidate]:
    """Return the candidates, those behind the chosen one marked as never looked at."""
    if chosen is None:
        return candidates
    position = next(i for i, c in enumerate(candidates) if c.kernel == chosen)
    return [c._replace(considered=i <= position) for i, c in enumerate(candidates)]


def check_readable(candidates: list[Candidate], facts: Facts) -> None:
    """Refuse where a candidate that the engine looks at reads a value that cannot be read."""
    for check in (c.decisive for c in candidates if c.considered and c.decisive):
        value = facts.get(check.fact)
        if isinstance(value, Unreadable):
            raise Refusal(EngineError(
                "kernel selection", value.type, value.message, None, value.source,
                f"Give {check.fact.removeprefix('env.')} a value that the engine takes."))


def alternatives(candidates: list[Candidate], chosen: str | None) -> tuple[Alternative, ...]:
    """Return the candidates before the chosen one that only unknown facts hold back."""
    found = []
    for candidate in candidates:
        if candidate.kernel == chosen:
            break
        if candidate.verdict == UNKNOWN:
            facts = tuple(c.fact for c in candidate.checks if c.verdict == UNKNOWN)
            found.append(Alternative(candidate.kernel, facts))
    return tuple(found)


def _no_kernel(family: Row, candidates: list[Candidate], facts: Facts) -> str:
    if not candidates:
        return fill(family["none_left"], {"backend": facts["flag.linear_backend"]})
    header = ("Failed to find a kernel that can implement the "
              f"{family['label']} linear layer. Reasons: \n")
    return header + "\n".join(c.reason or "" for c in candidates)
