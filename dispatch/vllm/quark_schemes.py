"""Which Quark scheme class a layer's config becomes: the first of the table's `quark_schemes` that
fits (quark.py:QuarkConfig._get_scheme_cls_from_config)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.predicates import applies
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Table
from quantplan.dispatch.vllm.quark_config import SOURCE, Rule
from quantplan.tables.errors import CheckpointError

FIELDS = ("dtype", "qscheme", "group_size", "scale_format", "scale_type", "ch_axis")
FLAGS = ("is_dynamic", "symmetric")
WHERE = f"{SOURCE}._get_scheme_cls_from_config"


def scheme_of(
    rule: Rule, pack_method: str | None, table: Table, path: str
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the table row of the scheme class and the facts of the config, or refuse as the
    engine does when none fits."""
    facts = facts_of(rule, pack_method, path)
    row = next((row for row in table["quark_schemes"].values() if fits(row, facts)), None)
    if two_steps(facts) and (row is None or not row.get("kernel_first")):
        raise refuse("layer assignment", "NotImplementedError",
                     "Multi-entry weight or activation quantization configs are only supported "
                     "for NVFP4.", path, WHERE)
    if facts["weight.qscheme"] == "per_block" and facts["weight.block"] is None:
        raise refuse("layer assignment", "ValueError",
                     "Quark W8A8 FP8 per-block weight quantization requires `block_size` in the "
                     "weight quantization config.", path, WHERE)
    if row is None:
        weight_config, input_config = (
            next(iter(entries(rule, name)), None) for name in ("weight", "input_tensors"))
        raise refuse("layer assignment", "NotImplementedError",
                     f"No quark compatible scheme was found. Weight config: {weight_config}, Input "
                     f"config: {input_config}", path, WHERE,
                     hint="No kernel of this version reads this combination.")
    return row, facts


def facts_of(rule: Rule, pack_method: str | None, path: str) -> dict[str, Any]:
    """Return the facts of a layer's config; refuses quantized outputs and biases."""
    if rule.get("output_tensors") or rule.get("bias"):
        raise refuse("layer assignment", "NotImplementedError",
                     "Currently, Quark models with output_tensors and bias quantized are not "
                     "supported", path, WHERE)
    return {"pack_method": pack_method, **_side("weight", entries(rule, "weight")),
            **_side("input", entries(rule, "input_tensors"))}


def fits(row: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Return whether one line of a row's `when` holds."""
    return any(applies(when, facts) for when in row["when"])


def two_steps(facts: Mapping[str, Any]) -> bool:
    """Return whether weights or activations are quantized in more than one step."""
    return bool(max(facts["weight.entries"], facts["input.entries"]) > 1)


def entries(rule: Rule, name: str) -> Sequence[Mapping[str, Any]]:
    """Return the steps of one side's quantization: none, one, or several."""
    value = rule.get(name)
    found = [] if value is None else value if isinstance(value, list) else [value]
    for entry in found:
        if not isinstance(entry, Mapping):
            raise CheckpointError(f"quantization config: {name}", wanted="an object",
                                  found=repr(value)[:60])
        for flag in FLAGS:
            if not isinstance(entry.get(flag), (bool, type(None))):
                raise CheckpointError(f"quantization config: {name}: {flag}",
                                      wanted="true or false", found=repr(entry[flag])[:60])
    return found


def _side(side: str, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    keys = frozenset(steps[0]) if steps else frozenset()
    facts: dict[str, Any] = {f"{side}.entries": len(steps), f"{side}.keys": keys}
    for index, suffix in enumerate(("", "2")):
        entry = steps[index] if index < len(steps) else None
        facts |= {f"{side}{suffix}.{name}": value for name, value in _entry(entry).items()}
    return facts


def _entry(entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the facts of one step, None throughout where there is none."""
    if entry is None:
        return dict.fromkeys((*FIELDS, *FLAGS, "block", "block_k"))
    block = entry.get("block_size") or None
    sized = isinstance(block, list) and len(block) == 2
    return {**{name: entry.get(name) for name in FIELDS},
            "is_dynamic": bool(entry.get("is_dynamic")), "symmetric": entry.get("symmetric"),
            "block": "x".join(map(str, block)) if isinstance(block, list) else block,
            "block_k": block[1] if sized and block else None}
