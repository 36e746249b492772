"""Which compressed-tensors scheme class a config group becomes: the first of the table's `schemes`
that fits (compressed_tensors.py:CompressedTensorsConfig._get_scheme_from_parts)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.ct_args import Args, argument_facts
from quantplan.dispatch.predicates import applies
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Table, trait
from quantplan.tables.record import NamedTuple

SOURCE = ("model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:"
          "CompressedTensorsConfig._get_scheme_from_parts")
GROUP_ORDERS = ("group", "dynamic")
"""Activation orderings within groups; dynamic is another word for group."""


class Group(NamedTuple):
    """The parts of a config group that choose the scheme."""

    weights: Args
    inputs: Args | None
    outputs: Args | None
    format: str | None


def scheme_of(group: Group, table: Table, gpu: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the table row of the scheme class, or refuse as the engine does when none fits.

    `gpu` holds the gpu.* facts.
    """
    facts = {**gpu, **group_facts(group, table)}
    for row in table["schemes"].values():
        if any(applies(when, facts) for when in row["when"]):
            _check_nvfp4(row["id"], group, table, path)
            return row  # type: ignore[no-any-return]
    if facts["format.activation"] and group.inputs is None:
        raise refuse("layer assignment", "AttributeError",
                     "'NoneType' object has no attribute 'num_bits'", path,
                     f"{SOURCE.rpartition('.')[0]}._is_static_tensor_w8a8")
    weight_quant, input_quant, output_quant = group.weights, group.inputs, group.outputs
    raise refuse(
        "layer assignment", "NotImplementedError",
        f"No compressed-tensors compatible scheme was found for layer_name={path!r}, "
        f"{weight_quant=}, {input_quant=}, {output_quant=}, format={group.format!r}", path, SOURCE,
        hint="No kernel of this version reads this combination of weights and activations.")


def group_facts(group: Group, table: Table) -> dict[str, Any]:
    """Return the facts that the `when` lines of scheme rows read; None where a part is absent."""
    formats = table["compressed_tensors"]["activation_formats"]
    return {"format": group.format, "format.activation": group.format in formats,
            **argument_facts("weights", group.weights), **argument_facts("inputs", group.inputs),
            **argument_facts("outputs", group.outputs)}


def _check_nvfp4(scheme: str, group: Group, table: Table, path: str) -> None:
    """Refuse NVFP4 weights whose inputs are neither absent nor NVFP4 themselves."""
    if scheme != "CompressedTensorsW4A4Fp4" or group.inputs is None:
        return
    inputs = group_facts(group._replace(weights=group.inputs), table)
    if not any(applies(when, inputs) for when in table["schemes"][scheme]["when"]):
        raise refuse("layer assignment", "ValueError", joined(table, (
            "For NVFP4 weights, input quantization must also be NVFP4 format, ",
            "None for NVFP4A16")), path, SOURCE)


def joined(table: Table, parts: tuple[str, ...]) -> str:
    """Return the words of a refusal that an exception takes whole, or in parts that print as a
    tuple."""
    return str(parts) if trait(table, "ct_refusals_in_parts") else "".join(parts)
