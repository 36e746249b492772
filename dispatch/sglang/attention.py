"""What the server makes of the attention backends, the page size and the KV cache's dtype: rules
of the table in the engine's order (arg_groups/attention_hook.py, model_hook.py, kv_cache_hook.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.candidates import alternatives, listed_candidate, mark_considered
from quantplan.dispatch.environment import library_facts
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, capability_family
from quantplan.dispatch.predicates import PASS, applies, fill, holds
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.trace import Candidate, Selection, Step, refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]
UNSET = "None"
"""An argument that nobody has set, as the engine's words show it."""
ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "attn.base": ("attention_backend", "attention backend"),
    "attn.prefill": ("prefill_attention_backend", "prefill attention backend"),
    "attn.decode": ("decode_attention_backend", "decode attention backend"),
    "page.size": ("page_size", "page size"), "kv.asked": ("kv_cache_dtype", "KV cache dtype"),
    "dsa.prefill": ("", "sparse prefill kernel"), "dsa.decode": ("", "sparse decode kernel")}
"""Fact that rules set -> the field of Deployment that asks for it, and its name for people."""


class Attention(NamedTuple):
    """The arguments as they are in the end: the backends of both phases, tokens of a page, what
    --kv-cache-dtype became, how decoding's backend was chosen, and all facts."""

    prefill: str
    decode: str
    page_size: int
    kv_dtype: str
    selection: Selection
    facts: Mapping[str, Any]


class _Choice(NamedTuple):
    """How --attention-backend was chosen so far: what a list gave, and the steps."""

    walked: str | None = None
    candidates: tuple[Candidate, ...] = ()
    steps: tuple[Step, ...] = ()


def server_attention(
    table: Table, checkpoint: Checkpoint, gpu: Gpu, deployment: Deployment
) -> Attention:
    """Return the arguments of attention, or refuse as the server does. Raises NotKnownError where
    the table does not know a model class' own rule."""
    rows = table["attention"]
    facts = {**_machine(table, gpu, deployment), **model_facts(rows, checkpoint),
             **_asked(deployment)}
    choice = _pinned(deployment, facts, rows["choices_source"])
    _derive(facts)
    for rule in rows["rules"]:
        if is_made(rule, facts):
            choice = _made(rows, rule, facts, choice)
            _derive(facts)
    return Attention(facts["attn.runs_prefill"], facts["attn.runs_decode"],
                     int(facts["page.size"]), str(facts["kv.asked"]),
                     _selection(facts, choice), facts)


def _machine(table: Table, gpu: Gpu, deployment: Deployment) -> dict[str, Any]:
    known = table["attention"]["memory_mib"] if gpu.memory_bytes is None else (
        gpu.memory_bytes >> 20)
    return {"gpu.capability": gpu.capability, "gpu.family": capability_family(gpu.capability),
            "gpu.capability_text": gpu.capability_text, "gpu.memory_mib": known,
            **library_facts(table["libraries"], deployment)}


def model_facts(rows: Row, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return model.* and dsa.page: what rules ask about the model, from its config alone."""
    config, names = checkpoint.text_config, checkpoint.config.get("architectures") or [""]
    quantizer = checkpoint.config.get("quantization_config")
    facts: dict[str, Any] = {row["fact"]: False for row in rows["model_facts"]}
    for row in rows["model_facts"]:
        if (names[0] in row.get("architectures", names[:1])
                and all(config.get(field) for field in row.get("given", ()))
                and all(text in (config.get(field) or ())
                        for field, text in row.get("holds", {}).items())
                and _says(quantizer, row.get("quantization", {}))):
            facts[row["fact"]] = True
    return {**facts, "model.architecture": names[0], "model.asymmetric": _asymmetric(config),
            "dsa.page": rows["index_page"] * (config.get("index_kpool") or 1)}


def _says(quantizer: Any, wanted: Row) -> bool:
    """Return whether a quantization config has the wanted values, in any case."""
    given = quantizer if isinstance(quantizer, Mapping) else {}
    return all(str(given.get(field)).upper() == str(value).upper()
               for field, value in wanted.items())


def _asymmetric(config: Row) -> bool:
    """Return whether keys and values have heads of different sizes
    (configs/model_config.py:ModelConfig.has_asymmetric_kv)."""
    heads = config.get("num_attention_heads")
    head = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    sliding = config.get("swa_head_dim") or head
    return bool((config.get("v_head_dim") or head) != head
                or (config.get("swa_v_head_dim") or sliding) != sliding)


def _asked(deployment: Deployment) -> dict[str, Any]:
    """Return the arguments as they were given."""
    given = {fact: getattr(deployment, field, None) for fact, (field, _) in ARGUMENTS.items()}
    return {**{fact: value or UNSET for fact, value in given.items()},
            "page.size": deployment.page_size or 0}


def _derive(facts: dict[str, Any]) -> None:
    """Set what follows from the three arguments: attn.runs_*, attn.unset, attn.same, attn.split."""
    base, prefill, decode = (facts[f"attn.{name}"] for name in ("base", "prefill", "decode"))
    runs = prefill if prefill != UNSET else base, decode if decode != UNSET else base
    facts |= {"attn.runs_prefill": runs[0], "attn.runs_decode": runs[1],
              "attn.split": runs[0] != runs[1], "attn.same": prefill == decode != UNSET,
              "attn.unset": {base, prefill, decode} == {UNSET}}


def _pinned(deployment: Deployment, facts: Row, source: str) -> _Choice:
    steps = tuple(Step("Pinned", str(facts[fact]), f"--{field.replace('_', '-')} {facts[fact]}",
                       source)
                  for fact, (field, _) in ARGUMENTS.items()
                  if fact.startswith("attn.") and facts[fact] != UNSET)
    return _Choice(steps=steps)


def is_made(rule: Row, facts: Row) -> bool:
    """Return whether a rule, or a note, is made at these facts."""
    lines, name = rule.get("when", ({},)), facts["model.architecture"]
    return (name in rule.get("architectures", (name,))
            and holds({"needs": rule.get("needs", ())}, facts)
            and any(applies(line, facts) for line in lines)
            and not any(applies({name: value}, facts)
                        for name, value in rule.get("unless", {}).items()))


def _made(rows: Row, rule: Row, facts: dict[str, Any], choice: _Choice) -> _Choice:
    """Return the choice after a rule that is made; sets the facts that it sets."""
    if "unknown" in rule:
        raise NotKnownError(f"SGLang's {rule['unknown']}",
                            hint="The server's rule for this model class is not in the table.")
    if "refuses" in rule:
        row = rule["refuses"]
        raise refuse("flags", row["type"], fill(row["message"], facts), None, rule["source"],
                     hint=row.get("hint"))
    if "walks" in rule:
        candidates, chosen = walk(rows, rule["walks"], facts)
        facts["attn.base"] = chosen
        return _Choice(chosen, candidates, choice.steps)
    steps = []
    for fact, value in rule["sets"].items():
        new = fill(value, facts) if isinstance(value, str) else value
        if new != facts[fact]:
            steps.append(Step("Overridden", f"{ARGUMENTS[fact][1]} {new}", rule["because"],
                              rule["source"]))
        facts[fact] = int(new) if fact == "page.size" else new
    return choice._replace(steps=(*choice.steps, *steps))


def walk(rows: Row, name: str, facts: Row) -> tuple[tuple[Candidate, ...], str]:
    """Return the candidates of a list and the chosen one."""
    found = next(row for row in rows["lists"] if row["id"] == name)
    tried = [listed_candidate(row["backend"], row, facts, found["source"])
             for row in found["backends"]]
    chosen = next(one.kernel for one in tried if one.verdict == PASS)
    return tuple(mark_considered(tried, chosen)), chosen


def _selection(facts: Row, choice: _Choice) -> Selection:
    """Return how decoding's backend was chosen; one that no list has stands alone."""
    runs, candidates = facts["attn.runs_decode"], choice.candidates
    if runs != choice.walked:
        candidates = (Candidate(runs, PASS, (), choice.steps[-1].source if choice.steps else ""),)
    return Selection("attention", runs, candidates, choice.steps,
                     alternatives([*candidates], runs))
