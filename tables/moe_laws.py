"""The laws of routed experts that their schema cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quantplan.tables.engine_loading import whole_rows
from quantplan.tables.mode_rows import modes
from quantplan.tables.moe_rows import CHECK_FIELDS

Engine = Mapping[str, Any]
Row = Mapping[str, Any]


def moe_requirements(engine: Engine) -> Iterator[tuple[str, Row]]:
    """Yield every requirement row of experts with the place it stands in; those of a check carry
    its words."""
    words = {check["id"]: check["says"] for check in engine["experts_checks"]}
    for row in engine["experts_classes"]:
        for check in CHECK_FIELDS:
            for position, requirement in enumerate(row.get(check, ())):
                told = {"says": words[check]} if check in words else {}
                yield f"experts_classes[{row['id']}].{check}[{position}]", {**told, **requirement}
    for row, backend in _backends(engine):
        for position, requirement in enumerate(backend.get("requires", ())):
            where = f"experts_lists[{row['id']}].{backend['id']}.requires[{position}]"
            yield where, requirement


def moe_conditions(engine: Engine) -> Iterator[tuple[str, Row]]:
    """Yield every `when` of experts that is no requirement's, with the place it stands in."""
    for row in engine["experts_lists"]:
        for field in ("order", "flags_when"):
            for rule in row.get(field, ()):
                yield f"experts_lists[{row['id']}].{field}", rule["when"]
    for row, backend in _backends(engine):
        if "act_when" in backend:
            yield f"experts_lists[{row['id']}].{backend['id']}", backend["act_when"]["when"]
    for row in engine["experts_modes"]:
        yield "experts_modes", row.get("when", {})


def _backends(engine: Engine) -> Iterator[tuple[Row, Row]]:
    for row in engine["experts_lists"]:
        yield from ((row, backend) for backend in row.get("backends", ()))


def likes_are_known(engine: Engine) -> Iterator[str]:
    """What a row is like stands above it, and every class has a file in the end."""
    for field in ("experts_lists", "experts_classes"):
        seen: set[str] = set()
        for row in engine[field]:
            if row.get("like", row["id"]) not in {*seen, row["id"]} or row.get("like") == row["id"]:
                yield f"{field}[{row['id']}]: like {row['like']}: no such row above"
                return
            seen.add(row["id"])
    yield from (f"experts_classes[{row['id']}]: no file"
                for row in whole_rows(engine["experts_classes"]) if "file" not in row)


def classes_are_known(engine: Engine) -> Iterator[str]:
    """Every class that a backend or another class names has a row, and every row is named."""
    known = {row["id"] for row in engine["experts_classes"]}
    named = {name: f"experts_lists[{row['id']}]" for row, backend in _backends(engine)
             for name in backend["classes"]}
    named |= {name: f"experts_classes[{row['id']}]" for row in engine["experts_classes"]
              for name in row.get("parts", ())}
    yield from (f"{where}: no class row {name}" for name, where in named.items()
                if name not in known)
    yield from (f"experts_classes[{name}]: in no list" for name in sorted(known - set(named)))


def backends_are_known(engine: Engine) -> Iterator[str]:
    """Every backend that an order, a switch or a flag names stands in the list."""
    for row in whole_rows(engine["experts_lists"]):
        known = {backend["id"] for backend in row["backends"]}
        named = {*row.get("auto", ()), *(n for names in row.get("flags", {}).values()
                                         for n in names)}
        for rule in (*row.get("order", ()), *row.get("switches", ()), *row.get("flags_when", ())):
            named |= {rule[key] for key in ("first", "last", "move", "after", "pins")
                      if key in rule}
            named |= {*rule.get("removes", ()), *rule.get("backends", ())}
        yield from (f"experts_lists[{row['id']}]: no backend {name}"
                    for name in sorted(named - known))


def keys_are_known(engine: Engine) -> Iterator[str]:
    """Every quantization key has a text, in schemes, modes and backends alike."""
    keys = set(engine["quant_keys"])
    named = [(where, part) for where, row in moe_requirements(engine)
             for part in _keys_of(row)]
    named += [(f"experts_lists[{row['id']}]", backend["act"]) for row, backend in _backends(engine)
              if "act" in backend]
    named += [("experts_modes", key) for row in engine["experts_modes"]
              for key in (*row["weights"], *row["act"])]
    named += [("online_keys", row["id"]) for row in engine["online_keys"]]
    yield from (f"{where}: no quant key {key}" for where, key in named if key not in keys)


def _keys_of(row: Row) -> Iterator[str]:
    """Yield the keys that a requirement names: of quant.scheme both sides."""
    for fact, value in ((row["fact"], row.get("in", row.get("equals", row.get("not_equals")))),
                        *row.get("when", {}).items()):
        values = value if isinstance(value, list) else [value]
        if fact == "quant.scheme":
            yield from (key for text in values for key in text.split(" x "))
        elif fact in ("quant.weight_key", "quant.act_key"):
            yield from values


def checks_are_known(engine: Engine) -> Iterator[str]:
    """Every check of a class but before and after has words, and what a backend asks is one."""
    known = {check["id"] for check in engine["experts_checks"]}
    yield from (f"experts_checks: no check {name}" for name in CHECK_FIELDS
                if name not in known | {"before", "after"})
    yield from (f"experts_lists[{row['id']}].{backend['id']}: no check {name}"
                for row, backend in _backends(engine) for name in backend.get("checks", ())
                if name not in known)


def activations_are_known(engine: Engine) -> Iterator[str]:
    """Every activation set that a class names is there."""
    known = {row["id"] for row in engine["activation_sets"]}
    yield from (f"experts_classes[{row['id']}]: no activation set {row['activations']}"
                for row in engine["experts_classes"]
                if row.get("activations", next(iter(known))) not in known)


def expert_modes_have_words(engine: Engine) -> Iterator[str]:
    """Every mode of experts is a mode of tables/modes, or is filled from facts."""
    told = [("experts_modes", row["mode"]) for row in engine["experts_modes"]]
    told += [(f"experts_classes[{row['id']}]", row["mode"]) for row in engine["experts_classes"]
             if "mode" in row]
    yield from (f"{where}: mode {mode} has no row in tables/modes" for where, mode in told
                if "{" not in mode and mode not in modes())


def expert_texts_fill(engine: Engine) -> Iterator[str]:
    """Every {word} of a list's texts is a fact, or one that the walk fills in."""
    for row in engine["experts_lists"]:
        texts = {**row.get("texts", {}), **{b["id"]: b["refused"] for b in row.get("backends", ())
                                            if "refused" in b}}
        for field, text in texts.items():
            for word in re.findall(r"\{([a-z][\w.]*)\}", text):
                if word not in MOE_FACTS | TEXT_WORDS:
                    yield f"experts_lists[{row['id']}].texts.{field}: unknown word {{{word}}}"


TEXT_WORDS = {"backend", "reason", "flag", "known", "candidates", "reasons", "class"}
"""What dispatch/vllm/experts/walk.py and order.py fill into a list's texts."""

MOE_FACTS = {
    "moe.experts", "moe.padded_experts", "moe.local_experts", "moe.hidden", "moe.intermediate",
    "moe.shard", "moe.bias", "moe.use_ep", "moe.tp", "moe.ep", "moe.dp", "moe.sp",
    "moe.data_parallel", "moe.sequence_parallel", "moe.all2all", "moe.all2all_name",
    "moe.swiglu_shaped", "moe.format", "moe.activation",
    "moe.activation_member", "moe.gated", "moe.swiglu_limit", "moe.clamped", "moe.swiglu_custom",
    "moe.situ_standard", "moe.routing", "moe.routing_number", "moe.hash_routing",
    "moe.router_dtype", "moe.humming_gemm", "moe.weight_only",
    "quant.weight_key", "quant.act_key", "quant.scheme", "quant.weight_text", "quant.act_text",
    "quant.scheme_text", "quant.alignment", "quant.vllm_cutlass", "quant.block_n", "quant.block_k",
    "quant.layout", "quant.may_have_bias", "quant.may_have_zero_points", "quant.group_scales",
    "quant.symmetry", "quant.weight_given", "quant.act_given",
}
"""Facts of experts: dispatch/vllm/experts/facts.py, walk.py, fp8.py, integers.py."""

MOE_LAWS: tuple[Callable[[Engine], Iterator[str]], ...] = (
    likes_are_known, classes_are_known, backends_are_known, keys_are_known, checks_are_known,
    activations_are_known, expert_modes_have_words, expert_texts_fill,
)
