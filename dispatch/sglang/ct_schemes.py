"""The scheme that a config group of compressed-tensors becomes, and what its layers run
(compressed_tensors.py:CompressedTensorsConfig._get_scheme_from_parts)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch import blocks
from quantplan.dispatch.ct_args import Args, Default, argument_facts
from quantplan.dispatch.predicates import applies, fill
from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.fp8 import check_backend, check_block
from quantplan.dispatch.sglang.operators import unfit
from quantplan.dispatch.shard import whole_pieces
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

FOLDER = "layers/quantization/compressed_tensors"
SOURCE = f"{FOLDER}/compressed_tensors.py:CompressedTensorsConfig"
METHOD = "CompressedTensorsLinearMethod"


class Group(NamedTuple):
    """The parts of a config group that choose the scheme."""

    weights: Args
    inputs: Args | None
    format: str | None


def assign_group(group: Group, context: Context, site: Site) -> Assignment:
    """Return the assignment of a layer that the group serves, or refuse as its scheme does."""
    row, why = _scheme(group, context, site.path)
    operators = _operators(row, group, site.path)
    facts = _fp8_facts(group)
    if operators == "fp8_block":
        facts = {**facts, **_block_facts(group, context, site)}
        refusal = _static_blocks(group, site)
    else:
        refusal = unfit(context.table, operators, site)
    if row["id"] == "CompressedTensorsWNA16":
        _check_groups(group.weights, site)
    return Assignment(METHOD, row["id"], operators, facts, why, refusal)


def _scheme(group: Group, context: Context, path: str) -> tuple[Mapping[str, Any], str | None]:
    """Return the row of the group's scheme on this GPU, and why it is another one than the group
    asks for."""
    schemes, capability = context.table["ct_schemes"], context.gpu.capability
    facts = _group_facts(group, context)
    row = next((row for row in schemes.values() if any(applies(when, facts)
                                                       for when in row["when"])), None)
    if row is None:
        raise refuse("layer assignment", "NotImplementedError",
                     "No compressed-tensors compatible scheme was found.", path,
                     f"{SOURCE}._get_scheme_from_parts",
                     hint="SGLang reads no such combination of weights, activations and format.")
    if "refused" in row:
        raise _refused(row["refused"], row, group, path)
    row, why = _below(row, context)
    least = row["min_capability"]
    if capability < least:
        words = ("Quantization scheme is not supported for ",
                 f"the current GPU. Min capability: {least}. ",
                 f"Current capability: {capability}.")
        raise refuse("layer assignment", "RuntimeError", str(words), path,
                     f"{SOURCE}._check_scheme_supported",
                     hint=f"It needs a GPU of capability {least // 10}.{least % 10} or above.")
    return row, why


def _below(row: Mapping[str, Any], context: Context) -> tuple[Mapping[str, Any], str | None]:
    """Return the row that stands in for a scheme on older GPUs or with some flags, and why."""
    asked = "below_when" in row and applies(row["below_when"], context.facts)
    if "below" not in row or not (asked or context.gpu.capability < row["min_capability"]):
        return row, None
    because = ", ".join(f"{fact} is {value}" for fact, value in row["below_when"].items()) if (
        asked) else fill(row["below_because"], context.facts)
    return context.table["ct_schemes"][row["below"]], because


def _group_facts(group: Group, context: Context) -> dict[str, Any]:
    formats = context.table["ct_formats"]
    return {"format": group.format, "format.activation": group.format in formats,
            "inputs.given": group.inputs is not None,
            **argument_facts("weights", group.weights), **argument_facts("inputs", group.inputs)}


def _operators(row: Mapping[str, Any], group: Group, path: str) -> str:
    """Return the scheme's list of operators for the group's weights."""
    if "operators" not in row:
        raise NotKnownError(f"the operators of SGLang's {row['id']}",
                            hint="They are not in the table yet.")
    name = row["operators"].get(str(getattr(group.weights, row["by"])))
    if name is None:
        raise _refused(row["other"], row, group, path)
    return str(name)


def _refused(
    said: Mapping[str, Any], row: Mapping[str, Any], group: Group, path: str
) -> Exception:
    facts = argument_facts("weights", group.weights)
    strategy = group.weights.strategy
    if isinstance(strategy, Default):  # Python 3.11 and later print the member of an enum
        facts["weights.strategy"] = f"{strategy.enum}.{strategy.upper()}"
    return refuse("layer assignment", said["type"], fill(said["message"], facts), path,
                  row["source"], hint=said["hint"])


def _fp8_facts(group: Group) -> dict[str, Any]:
    """Return how the group asks FP8 activations to be quantized; dynamic ones are so per token."""
    if group.inputs is None or group.inputs.type != "float":
        return {}
    return {"fp8.act": "per_token" if group.inputs.dynamic else "static"}


def _block_facts(group: Group, context: Context, site: Site) -> dict[str, Any]:
    """Return the facts of block scales. The scheme asks for the product without its block, and
    reads no wish for Marlin."""
    rows, columns = group.weights.block_structure or (0, 0)
    facts = {"fp8.serialized": True, "fp8.block": f"{rows}/{columns}", "fp8.block_k": 128,
             "fp8.scale_format": "None", "fp8.mxfp8_view": False,
             "env.SGLANG_FORCE_FP8_MARLIN": False}
    check_backend(context, facts, site)
    whole = site.shard.parts
    split = blocks.is_split(site.shard, context.deployment.tp)
    check_block((rows, columns), context, site, whole if split else whole[:-1])
    return facts


def _static_blocks(group: Group, site: Site) -> Exception | None:
    """Return what ends the start once the weights are loaded, where activations are static."""
    if group.inputs is None or group.inputs.dynamic:
        return None
    return refuse("weights", "AssertionError", "", site.path,
                  f"{FOLDER}/schemes/compressed_tensors_w8a8_fp8.py:CompressedTensorsW8A8Fp8",
                  hint="Block scales go with dynamic activations.")


def _check_groups(weights: Args, site: Site) -> None:
    """Refuse a group that straddles ranks; with activation ordering every rank has all scales."""
    size, cut = weights.group_size or -1, site.shard
    if size > 0 and weights.actorder not in ("group", "dynamic") and cut.k % size:
        raise refuse("shapes under TP", "AssertionError", "", site.path,
                     f"{FOLDER}/schemes/compressed_tensors_wNa16.py:CompressedTensorsWNA16",
                     hint=whole_pieces(cut.k_full, size, "groups"))
