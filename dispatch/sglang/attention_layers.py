"""The layers that attend, with what the server chose for them, and what that does later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.predicates import PASS, applies, fill
from quantplan.dispatch.sglang.attention import UNSET, Attention, is_made, walk
from quantplan.dispatch.sglang.context import Context, Site, Table
from quantplan.dispatch.sglang.dtypes import kv_dtype
from quantplan.dispatch.sglang.serving import Serving
from quantplan.dispatch.trace import Candidate, Finding, Layer, Selection, Step, refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]


class Attended(NamedTuple):
    """What every attention layer has: the server's choice, the KV cache's dtype and method, how
    attention of each class of encoders was chosen, which has no cache, and the facts of all this.
    """

    attention: Attention
    dtype: str
    method: str | None
    encoders: Mapping[str, Selection]
    facts: Row


def attended(context: Context, attention: Attention, serving: Serving) -> Attended:
    """Return what attention layers have."""
    table, deployment = context.table, context.deployment
    # The cache's dtype follows the config of a model class that keeps it.
    algo = None if attention.facts["model.keeps_no_config"] else serving.kv_algo
    dtype = kv_dtype(table, attention.kv_dtype, context.dtype, algo)
    rows = table["attention"]
    encoders = {name: _encoder(rows, found, deployment, attention)
                for name, found in rows["encoders"].items()}
    method = None if attention.facts["model.bare_attention"] else serving.kv_method
    facts = {**attention.facts, "kv.dtype": dtype, "kv.method": method or UNSET,
             "kv.would": serving.kv_method or UNSET,
             "kv.algo": str(algo).upper(), "kv.requested": deployment.kv_cache_dtype}
    return Attended(attention, dtype, method, encoders, facts)


def _encoder(rows: Row, name: str, deployment: Deployment, attention: Attention) -> Selection:
    asked, source = deployment.mm_attention_backend, rows["encoder_source"]
    if asked is None:
        candidates, chosen = walk(rows, name, attention.facts)
        return Selection(name, chosen, candidates)
    step = Step("Pinned", asked, f"--mm-attention-backend {asked}", source)
    return Selection(name, asked, (Candidate(asked, PASS, (), source),), (step,))


def keeps_cache(table: Table, site: Site) -> bool:
    """Return whether a module that attends has a KV cache."""
    rows = table["attention"]
    return site.module.module not in (*rows["encoders"], *(row["module"] for row in rows["states"]))


def attention_layer(table: Table, found: Attended, site: Site) -> Layer:
    """Return the layer of a module that attends; refuses what its class refuses."""
    rows, attention, name = table["attention"], found.attention, site.module.module
    layer = Layer(site.path, name, layer_index=site.layer_index)
    if name in rows["encoders"]:
        _check_encoder(rows, found, site)
        selection = found.encoders[name]
        return layer._replace(attn_backend=selection.kernel, selection=selection)
    if not keeps_cache(table, site):
        return layer._replace(attn_backend=_state_backend(rows, found, name))
    prefill = attention.prefill if attention.prefill != attention.decode else None
    return layer._replace(method=found.method if site.module.quantized else None,
                          attn_backend=attention.decode, kv_cache_dtype=found.dtype,
                          prefill_backend=prefill, selection=attention.selection)


def _check_encoder(rows: Row, found: Attended, site: Site) -> None:
    name = site.module.module
    facts = {**found.facts, "encoder.module": name, "encoder.backend": found.encoders[name].kernel}
    for rule in rows["encoder_rules"]:
        if is_made(rule, facts):
            row = rule["refuses"]
            raise refuse("kernel selection", row["type"], row["message"], site.path,
                         rule["source"], hint=row.get("hint"))


def _state_backend(rows: Row, found: Attended, name: str) -> str:
    for row in rows["states"]:
        if row["module"] == name and applies(row["when"], found.facts):
            return str(row["backend"])
    raise NotKnownError(f"the backend of {name} in {found.facts['model.architecture']}",
                        hint="A row in SGLang's table under attention.states teaches it.")


def attention_notes(table: Table, found: Attended) -> Iterator[Finding]:
    """Yield what the choice does later, or does unasked."""
    for row in table["attention"]["notes"]:
        if is_made(row, found.facts):
            yield Finding(row["stage"], row["severity"], row["id"], fill(row["says"], found.facts),
                          row.get("hint"), row["source"])
