"""The laws of attention in SGLang's tables that their schema cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Engine = Mapping[str, Any]
SET_BY_RULES = frozenset({"attn.base", "attn.prefill", "attn.decode", "page.size", "kv.asked",
                          "dsa.prefill", "dsa.decode"})
ATTENTION_FACTS = frozenset({
    *SET_BY_RULES, "attn.runs_prefill", "attn.runs_decode", "attn.unset", "attn.same",
    "attn.split", "gpu.memory_mib", "model.architecture", "model.asymmetric", "dsa.page",
    "kv.dtype", "kv.method", "kv.algo", "kv.requested", "encoder.backend",
    "encoder.module", "kv.would"})
"""Facts of attention, besides those of model_facts: dispatch/sglang/attention.py."""


def attention_requirements(engine: Engine) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every requirement of attention with the place it stands in."""
    for part in engine["attention"]["lists"]:
        for backend in part["backends"]:
            yield from ((f"attention.lists[{part['id']}][{backend['backend']}]", row)
                        for row in backend.get("requires", ()))
    for where, rule in attention_rules(engine):
        yield from ((where, row) for row in rule.get("needs", ()))


def attention_rules(engine: Engine) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every rule and note of attention with the place it stands in."""
    for name in ("rules", "encoder_rules", "notes"):
        yield from ((f"attention.{name}[{row['id']}]", row) for row in engine["attention"][name])


def attention_rules_do_one_thing(engine: Engine) -> Iterator[str]:
    """A rule of attention sets arguments, walks a list that is there, refuses, or is not known;
    what sets says why."""
    lists = {row["id"] for row in engine["attention"]["lists"]}
    for where, row in attention_rules(engine):
        if sum(name in row for name in ("sets", "walks", "refuses", "unknown", "says")) != 1:
            yield f"{where}: wanted one of sets, walks, refuses and unknown"
        yield from (f"{where}: {name} is no argument"
                    for name in sorted({*row.get("sets", ())} - SET_BY_RULES))
        if row.get("walks", "default") not in lists:
            yield f"{where}: no list {row['walks']}"
        if "sets" in row and "because" not in row:
            yield f"{where}: wanted because"
