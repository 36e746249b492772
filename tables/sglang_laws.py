"""The laws of SGLang's tables that their schema cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.tables.mode_rows import modes
from quantplan.tables.requirement_rows import PREDICATE_FIELDS
from quantplan.tables.sglang_attention_laws import (
    ATTENTION_FACTS,
    attention_requirements,
    attention_rules,
    attention_rules_do_one_thing,
)

Engine = Mapping[str, Any]
FACTS = frozenset({
    "gpu.capability", "gpu.family", "gpu.capability_text", "dtype.model", "layer.n", "layer.k",
    "gpu.name", "layer.nk",
    "layer.n_full", "layer.k_full", "fp8.serialized", "fp8.act", "fp8.backend", "fp8.block",
    "fp8.block_k", "fp8.scale_format", "fp4.backend", "fp8.mxfp8_view", "mxfp8.deep_gemm_tiles",
    "quant.group_size", "humming.fails", "nvfp4.swiglu", "moe.routing",
    "moe.backend", "moe.named", "moe.exchange", "moe.told", "moe.act", "moe.activation",
    "quant.method", "quant.fuses_shared",
    "quant.block", "model.shared_fused", "model.language", "experts.format",
})
"""Facts besides lib.* and env.*: dispatch/sglang/context.py, fp8.py, experts.py, modelopt_fp4.py
and resolve.py."""
CT_FACTS = frozenset({
    "format", "format.activation", "inputs.given",
    *(f"{part}.{name}" for part in ("weights", "inputs")
      for name in ("type", "num_bits", "strategy", "symmetric", "group_size", "dynamic"))})
"""Facts of a config group: dispatch/sglang/ct_schemes.py."""


def requirements(engine: Engine) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every requirement row with the place it stands in."""
    for part in engine["operators"]:
        for operator in part["operators"]:
            yield from ((f"operators[{part['id']}][{operator['id']}]", row)
                        for row in operator.get("requires", ()))
        yield from ((f"operators[{part['id']}].after_loading", row)
                    for row in part.get("after_loading", ()))
    for name in ("fp8_backends", "mxfp8_backends"):
        for backend in engine[name]:
            yield from ((f"{name}[{backend['id']}]", row) for row in backend.get("requires", ()))
    for backend in engine["moe_backends"]:
        yield from ((f"moe_backends[{backend['id']}]", row)
                    for row in backend.get("fp8_asserts", ()))
    for model in engine["models"]:
        rules, where = model.get("shared_fused", {}), f"models[{model['architectures'][0]}]"
        yield from ((f"{where}.shared_fused", row) for name in ("fits", "apart")
                    for part in rules.get(name, ()) for row in part.get("needs", ()))
        yield from ((f"{where}.modules[{change['path']}]", row)
                    for change in model.get("modules", ()) for row in change.get("needs", ()))
    for auto in engine["fp4_auto"]:
        yield from ((f"fp4_auto[{auto['backend']}]", row) for row in auto.get("needs", ()))
    yield from attention_requirements(engine)


def one_predicate_each(engine: Engine) -> Iterator[str]:
    """Every requirement has exactly one predicate."""
    for where, row in requirements(engine):
        if sum(name in row for name in PREDICATE_FIELDS) != 1:
            yield f"{where}: wanted one predicate"


def facts_are_known(engine: Engine) -> Iterator[str]:
    """Every fact that is tested is one that the resolver provides."""
    known = FACTS | {f"lib.{row['id']}" for row in engine["libraries"]}
    known |= {f"env.{row['id']}" for row in engine["environment"]} | ATTENTION_FACTS
    known |= {row["fact"] for row in engine["attention"]["model_facts"]}
    for where, row in requirements(engine):
        yield from (f"{where}: unknown fact {name}"
                    for name in sorted({row["fact"], *row.get("when", {})} - known))
    for where, row in attention_rules(engine):
        asked = {name for line in row.get("when", ()) for name in line}
        yield from (f"{where}: unknown fact {name}"
                    for name in sorted({*asked, *row.get("unless", {})} - known))


def operators_differ(engine: Engine) -> Iterator[str]:
    """No two operators of a list share an id, and every mode is one of tables/modes."""
    for part in engine["operators"]:
        ids = [row["id"] for row in part["operators"]]
        yield from (f"operators[{part['id']}]: id {i} twice"
                    for i in sorted({x for x in ids if ids.count(x) > 1}))
        yield from (f"operators[{part['id']}][{row['id']}]: mode {row['mode']} has no row"
                    for row in part["operators"]
                    if "{" not in row["mode"] and row["mode"] not in modes())


def models_have_one_row(engine: Engine) -> Iterator[str]:
    """No model class has two rows."""
    names = [name for row in engine["models"] for name in row["architectures"]]
    yield from (f"models: {name} twice" for name in sorted({x for x in names
                                                            if names.count(x) > 1}))


def names_are_methods(engine: Engine) -> Iterator[str]:
    """What a ModelOpt algorithm or a compatible name leads to is a registered method."""
    known = {row["id"] for row in engine["methods"]}
    named = [row["method"] for row in engine["modelopt_algos"]]
    named += [*engine["compatible"], *engine["requantizes"]]
    yield from (f"{name} is no method" for name in named if name not in known)


def schemes_lead_somewhere(engine: Engine) -> Iterator[str]:
    """Every scheme of compressed-tensors reads facts of a config group and names lists that are
    there; what serves older GPUs is a scheme."""
    lists = {part["id"] for part in engine["operators"]}
    schemes = {row["id"] for row in engine["ct_schemes"]}
    for row in engine["ct_schemes"]:
        where = f"ct_schemes[{row['id']}]"
        facts = {name for when in row["when"] for name in when}
        yield from (f"{where}: unknown fact {name}" for name in sorted(facts - CT_FACTS))
        yield from (f"{where}: no list {name}"
                    for name in sorted({*row.get("operators", {}).values()} - lists))
        if row.get("below", row["id"]) not in schemes:
            yield f"{where}: no scheme {row['below']}"


SGLANG_LAWS = (attention_rules_do_one_thing, schemes_lead_somewhere, one_predicate_each,
               facts_are_known, operators_differ, models_have_one_row, names_are_methods)
