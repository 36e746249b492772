"""Formats by name, and the same model as a hypothetical checkpoint in another format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Note, Tensor
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.structure import ROUTER, TENSORS, TEXT, Leaf, Module, Structure
from quantplan.dispatch.weight_format import CONFIG_FIELDS, WeightFormat, file_shape, read_format
from quantplan.tables.errors import NotKnownError, UsageError
from quantplan.tables.load import read_table
from quantplan.tables.near_names import did_you_mean, near_names

LINEAR_SPLITS = ("qkv", "column", "row")
HYPOTHETICAL = "hypothetical"
"""Origin of checkpoints that as_format returns."""
DEFAULT_DTYPE = "BF16"
"""Dtype of a hypothetical checkpoint whose config names none."""


def find_format(name: str) -> Mapping[str, Any]:
    """Return the row of a format by id or alias, in any case, with _ for -.

    Raises UsageError that names the closest formats.
    """
    known = _by_name()
    row = known.get(str(name).strip().lower().replace("_", "-"))
    if row is None:
        ids = (row["id"] for row in read_table("formats/formats")["formats"])
        raise UsageError(f"unknown weight format {str(name)[:40]!r}",
                         wanted="one of " + ", ".join(ids),
                         hint=did_you_mean(near_names(str(name), known)))
    return row


@cache
def _by_name() -> Mapping[str, Mapping[str, Any]]:
    rows = read_table("formats/formats")["formats"]
    return {name: row for row in rows for name in (row["id"], *row["aliases"])}


def format_ids() -> list[str]:
    """Return the names that --as takes."""
    return sorted(_by_name())


def what_if_formats() -> list[Mapping[str, Any]]:
    """Return the rows of the formats that a budget compares, in the table's order."""
    return [find_format(name) for name in read_table("formats/formats")["what_if"]]


def as_format(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Return the same model as the usual tool would write it in format `name`.

    The config's quantization section is set, replaced or removed. A checkpoint that is quantized
    already is allowed: every shape comes from the config's sizes, none from its tensors. Tensors
    are synthesised, when first asked for, if the rows of the model's family hold every weight; else
    they are None, and the section lists the routers, which the usual tools leave as they are.
    Raises UsageError for an unknown name.
    """
    row = find_format(name)
    config = _config_as(checkpoint.config, row)
    structure = _structure(config)
    if structure is not None:
        _leave_routers(config.get("quantization_config") or {}, structure)
    return Checkpoint(
        name=f"{checkpoint.name} as {row['id']}",
        origin=HYPOTHETICAL,
        config=config,
        side_files={name: content for name, content in checkpoint.side_files.items()
                    if "quant" not in name},
        tensors=_tensors(config, structure),
        notes=(Note("hypothetical", f"a hypothetical checkpoint: {row['id']} ({row['title']}) as "
                    f"written by {row['source']}", severity="info"),),
    )


def _config_as(config: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    from copy import deepcopy

    changed = {name: value for name, value in config.items() if name not in CONFIG_FIELDS}
    if "config" in row:
        changed["quantization_config"] = deepcopy(row["config"])
    else:
        changed["dtype" if "dtype" in config else "torch_dtype"] = row["dtype"]
    return changed


def _structure(config: Mapping[str, Any]) -> Structure | None:
    try:
        return model_structure(Checkpoint("", HYPOTHETICAL, config))
    except NotKnownError:
        return None


def _leave_routers(quantization: dict[str, Any], structure: Structure) -> None:
    """List the routers where a method's config lists the modules that it leaves."""
    field = read_table("formats/formats")["leaves_in"].get(quantization.get("quant_method"))
    if field and (routers := structure.routers()):
        quantization[field] = [*quantization.get(field, ()), *routers]


def is_decoder_linear(module: Module) -> bool:
    """Return whether `module` is a linear layer inside a decoder layer: what formats quantize.
    Routers and layers that the engine never quantizes are none."""
    if not module.per_layer or module.stack != TEXT or not can_be_quantized(module):
        return False
    return module.split in LINEAR_SPLITS or (module.quantized and module.module != ROUTER)


def can_be_quantized(module: Module) -> bool:
    """Return whether `module` holds matrices of linear layers or experts."""
    return module.kind in ("linear", "experts") and bool(module.leaves)


def is_left_out(module: Module, structure: Structure) -> bool:
    """Return whether `module` has no weight of its own: attention, or a tied lm_head."""
    return not module.leaves or (structure.tied and is_head(module))


def is_head(module: Module) -> bool:
    """Return whether `module` makes logits: the embedding itself where the two are tied."""
    return module.module == "ParallelLMHead"


def is_quantized(module: Module, weights: WeightFormat | None) -> bool:
    """Return whether `weights` covers `module` when nothing is ignored. Layers that the engine
    builds without a quantization are not covered, such as convolutions of linear attention."""
    if weights is None or (weights.experts_only and module.kind != "experts"):
        return False
    built = module.quantized or bool(module.quantized_by)
    return (built and is_decoder_linear(module)) or (weights.lm_head and is_head(module))


def plain_tensors(module: Module, leaf: Leaf) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of the tensors of an unquantized checkpoint module."""
    name = leaf.name if module.kind in TENSORS else "weight"
    yield name, (leaf.n,) if leaf.k is None else (leaf.n, leaf.k)
    if module.bias:
        yield "bias", (leaf.n,)


class SynthesisedTensors(Mapping[str, Tensor]):
    """The tensors of a hypothetical checkpoint, built when first asked for."""

    def __init__(self, structure: Structure, weights: WeightFormat | None, dtype: str) -> None:
        self._arguments = structure, weights, dtype
        self._built: dict[str, Tensor] | None = None

    def _tensors(self) -> dict[str, Tensor]:
        if self._built is None:
            self._built = dict(_synthesise(*self._arguments))
        return self._built

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())


def _tensors(
    config: Mapping[str, Any], structure: Structure | None
) -> SynthesisedTensors | None:
    if structure is None or not structure.complete:
        return None
    named = str(config.get("dtype") or config.get("torch_dtype") or "").replace("torch.", "")
    dtype = read_table("formats/formats")["model_dtypes"].get(named, DEFAULT_DTYPE)
    return SynthesisedTensors(structure, read_format(config), dtype)


def _synthesise(
    structure: Structure, weights: WeightFormat | None, dtype: str
) -> Iterator[tuple[str, Tensor]]:
    for module in structure.modules:
        if is_left_out(module, structure):
            continue
        for leaf in module.leaves:
            tensors = list(_leaf_tensors(module, leaf, weights, dtype))
            path = module.leaf_path(leaf.name)
            for layer in module.layers or (0,):
                prefix = path.replace("*", str(layer))
                for name, tensor in tensors:
                    yield f"{prefix}.{name}", tensor


def _leaf_tensors(
    module: Module, leaf: Leaf, weights: WeightFormat | None, dtype: str
) -> Iterator[tuple[str, Tensor]]:
    quantized = weights if is_quantized(module, weights) else None
    for name, shape in plain_tensors(module, leaf):
        if quantized is None or name != "weight":
            yield name, Tensor(dtype, shape)
    if quantized is None:
        return
    for row in quantized.tensors:
        stored = dtype if row["dtype"] == "model" else row["dtype"]
        yield row["name"], Tensor(stored, file_shape(row, quantized, leaf.n, leaf.k or 1))
