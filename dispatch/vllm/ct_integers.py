"""What the integer schemes of compressed-tensors ask of the mixed-precision kernels; the scheme's
table row `integer` says how they differ (compressed_tensors/schemes/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.predicates import applies, show
from quantplan.dispatch.shard import whole_pieces
from quantplan.dispatch.trace import Finding, Selection, refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.ct_schemes import GROUP_ORDERS, Group
from quantplan.dispatch.vllm.integers import (
    act_words,
    integer_quant,
    marlin_input_dtype,
    whole_scales,
)

Row = Mapping[str, Any]
HUMMING = "HummingLinearKernel"
GROUP_SOURCE = "distributed/utils.py:verify_group_size_divides_partition"


def assign(row: Row, group: Group, context: Context, site: Site) -> Assignment:
    """Return the assignment of a layer, or refuse as the scheme's constructor does."""
    rules, weights = row["integer"], group.weights
    zero_points = not weights.symmetric and "zero_point_types" in rules
    types = rules["zero_point_types" if zero_points else "types"]
    _check_arguments(row, group, site, types)
    size = -1 if weights.group_size is None else weights.group_size
    if rules["whole_groups"] == "before":
        _check_whole_groups("before", size, site)
        size = site.shard.k if size == -1 else size
    if "unpacked_when" in rules and applies(rules["unpacked_when"], context.facts):
        return _unpacked(row, size, site)
    act, only_humming = rules.get("act_type", context.dtype), _humming_input(rules, group)
    quant = integer_quant(site, types[str(weights.num_bits)], weights.num_bits, size, zero_points,
                          act, only_humming)
    quant["quant.g_idx"] = weights.actorder in GROUP_ORDERS
    return Assignment("CompressedTensorsLinearMethod", row["id"], "mixed_precision", quant,
                      act_words(act), why=_why(group, row),
                      wanted=None if only_humming[0] == "none" else only_humming[0])


def _unpacked(row: Row, size: int, site: Site) -> Assignment:
    _check_whole_groups(row["integer"]["whole_groups"], size, site)
    facts = " and ".join(f"{name} is {show(name, value)}"
                         for name, value in row["integer"]["unpacked_when"].items())
    return Assignment("CompressedTensorsLinearMethod", row["id"], act="none",
                      why=f"{facts}: the weight is unpacked and multiplied in 16 bits")


def _check_arguments(row: Row, group: Group, site: Site, types: Row) -> None:
    rules, weights = row["integer"], group.weights
    if str(weights.num_bits) not in rules["types"]:
        words = rules["bad_bits"].format(bits=weights.num_bits,
                                         supported=[int(bits) for bits in rules["types"]])
        raise refuse("layer assignment", "ValueError", words, site.path, row["source"])
    if str(weights.num_bits) not in types:
        raise refuse("layer assignment", "KeyError", str(weights.num_bits), site.path,
                     row["source"], hint="No zero points at this width; use symmetric weights.")
    if "group_sizes" in rules and weights.group_size not in rules["group_sizes"]:
        raise refuse("layer assignment", "ValueError", rules["bad_group"], site.path,
                     row["source"])


def _humming_input(rules: Row, group: Group) -> tuple[str, int]:
    """Return the activation key and group size that only Humming reads."""
    if "humming_input" not in rules or group.inputs is None:
        return ("none", 0)
    size = group.inputs.group_size or 0
    return (f"{rules['humming_input']}_{'group' if size > 0 else 'token'}", max(size, 0))


def _why(group: Group, row: Row) -> str | None:
    if group.outputs is not None:
        return "inputs and outputs are rounded to INT8 values around a 16-bit product"
    return None if group.inputs is None or "act_type" in row["integer"] else (
        f"the checkpoint asks for {group.inputs.num_bits}-bit activations; only Humming reads that")


def after_selection(
    row: Row, context: Context, site: Site, assignment: Assignment, selection: Selection
) -> Assignment:
    """Return the assignment once the kernel is known: Marlin may take 8-bit activations, and a
    group that straddles ranks is refused only now (create_weights of the scheme)."""
    quant, rules = dict(assignment.quant), row["integer"]
    if rules.get("marlin_input") and selection.kernel == "MarlinLinearKernel":
        act = marlin_input_dtype(context, site) or context.dtype
        quant = integer_quant(site, quant["quant.weight_type"], quant["quant.bits"],
                              quant["quant.group_size"], quant["quant.zero_points"], act
                              ) | {"quant.g_idx": quant["quant.g_idx"]}
    if rules["whole_groups"] != "before" and not quant["quant.g_idx"]:
        _check_whole_groups(rules["whole_groups"], quant["quant.group_size"], site)
    why = None if selection.kernel == HUMMING and "humming_input" in rules else assignment.why
    note = (assignment.note or _note(row, site, quant, str(selection.kernel))
            or whole_scales(context, site, quant))
    return assignment._replace(quant=quant, act=act_words(quant["quant.act_type"]), why=why,
                               note=note)


def _note(row: Row, site: Site, quant: Row, kernel: str) -> Finding | None:
    """Return what Humming cannot load, though it was chosen."""
    if kernel != HUMMING:
        return None
    bits, asked = quant["quant.bits"], row["integer"].get("humming_input")
    if quant["quant.zero_points"] and asked == f"int{bits}":
        return Finding(
            "weight loading", "error", "humming-zero-points",
            f"{site.path}: Humming does not support asymmetric (zero_point) weights when weight "
            f"and activation bit widths are equal (W{bits}A{bits})",
            "Use symmetric weights, or --linear-backend marlin where Marlin takes them.",
            "model_executor/layers/quantization/utils/humming/linear.py:"
            "prepare_humming_linear_layer_config")
    if row["integer"]["whole_groups"] == "before":
        return Finding(
            "weight loading", "warning", "weights-one-per-byte",
            f"{site.path}: {row['id']} keeps one 4-bit value per byte, as its CPU kernel reads "
            f"them; {kernel} reads eight per 32-bit word: it cannot be expected to load",
            "Store the weights pack-quantized.", row["source"])
    return None


def _check_whole_groups(kind: str, size: int, site: Site) -> None:
    """Refuse a group that straddles ranks. Scales of whole rows are repeated on every rank."""
    shard = site.shard
    whole = shard.k if size == -1 else size
    if shard.k % whole == 0:
        return
    source, hint = GROUP_SOURCE, whole_pieces(shard.k_full, whole, "groups")
    if kind == "assert":
        raise refuse("shapes under TP", "AssertionError", "", site.path, source, hint)
    named = f" for layer '{site.path}'" if kind == "after_named" else ""
    raise refuse(
        "shapes under TP", "ValueError",
        f"Weight input_size_per_partition={shard.k}{named} is not divisible by "
        f"group_size={whole}. This happens when tensor_parallel_size splits the layer "
        "input into shards that are not a whole number of quant groups. Consider reducing "
        "tensor_parallel_size.", site.path, source, hint)
