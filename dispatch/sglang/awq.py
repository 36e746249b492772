"""AWQ checkpoints: Marlin where it serves the layer, else dequantized for every product
(layers/quantization/awq/awq.py)."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import (
    Experts,
    check_backend_is_auto,
    marlin_serves_experts,
    unquantized_experts,
    wna16_experts,
)
from quantplan.dispatch.sglang.fields import Config, given, names, need, whole
from quantplan.dispatch.shard import whole_pieces
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/awq/awq.py:AWQConfig"
SCHEME = "layers/quantization/awq/schemes/awq_linear.py:AWQLinearScheme.create_weights"
SHAPES = "layers/quantization/marlin_utils.py:verify_marlin_supports_shape"
EXPERTS = "layers/quantization/awq/schemes/awq_moe.py:AWQMoEScheme.create_moe_runner"
EXPERTS_MADE = "layers/quantization/awq/schemes/awq_moe.py:AWQMoEScheme.create_weights"
BITS = 4
PACK = 8
"""4-bit values in a 32-bit word."""


class AwqFields(NamedTuple):
    """What AWQConfig and AWQMarlinConfig keep; `marlin` says which of them it is."""

    marlin: bool
    group_size: int
    ignored: tuple[str, ...]
    lm_head: bool


def read(config: Config | None, context: Context) -> AwqFields:
    """Return the fields, or refuse as the config class does."""
    assert config is not None, "the class asks for a file first"
    marlin = context.facts["quant.method"] == "awq_marlin"
    keys = (("bits",), ("group_size",)) if marlin else (("w_bit", "bits"),
                                                        ("q_group_size", "group_size"))
    bits, group_size = (need(config, *key) for key in keys)
    need(config, "zero_point")
    if bits != BITS:
        raise refused_bits(bits)
    return AwqFields(marlin, whole(group_size, "group_size"),
                     names(given(config, "modules_to_not_convert"), "modules_to_not_convert"),
                     bool(given(config, "lm_head", default=False)) and marlin)


def assign(fields: AwqFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer, of lm_head where the checkpoint quantizes it."""
    head = site.module.split == "vocab"
    if head and not (fields.lm_head and site.module.module == "ParallelLMHead"):
        return None
    if any(name in site.path for name in fields.ignored):
        return unquantized("named in modules_to_not_convert")
    if head:
        raise refuse("layer assignment", "AttributeError", "'ParallelLMHead' object has no "
                     "attribute 'output_size'", site.path,
                     "layers/quantization/marlin_utils.py:check_marlin_supports_layer",
                     hint="Serve a checkpoint that does not quantize lm_head.")
    if fields.marlin and _marlin_fits(fields, context, site):
        check_marlin_shape(context, site, fields.group_size)
        return Assignment("AWQLinearMethod", "AWQMarlinLinearScheme", "marlin_w4")
    check_plain(fields.group_size, site)
    return Assignment("AWQLinearMethod", "AWQLinearScheme", "awq",
                      why="its whole shape is none of Marlin's" if fields.marlin else None)


def experts(fields: AwqFields, context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of routed experts; AWQConfig has none for them."""
    if not fields.marlin:
        return unquantized_experts("AWQConfig has no method for experts: their weights are built "
                                   "in 16 bits")
    if any(name in site.path for name in fields.ignored):
        return unquantized_experts("named in modules_to_not_convert")
    if not marlin_serves_experts(context, held, fields.group_size):
        return wna16_experts(held, site, BITS, fields.group_size,
                             "a rank's experts are none of Marlin's")
    return marlin_experts(fields.group_size, context, site, held)


def marlin_experts(group_size: int, context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment of experts that Marlin serves, or refuse as AWQMoEScheme does."""
    if group_size < 1:
        raise refuse("layer assignment", "RuntimeError", "Trying to create tensor with negative "
                     f"dimension -{held.hidden}: [{held.number}, -{held.hidden}, "
                     f"{2 * held.intermediate}]", site.path, EXPERTS_MADE,
                     hint="Serve a checkpoint with groups of 32, 64 or 128.")
    check_backend_is_auto(context, site, EXPERTS, "AWQMoEMethod")
    return Assignment("AWQMoEMethod", "AWQMoEScheme", "experts_marlin_w4")


def _marlin_fits(fields: AwqFields, context: Context, site: Site) -> bool:
    """Return whether Marlin serves the layer's whole shape: it is asked before the ranks cut it
    (check_marlin_supports_layer)."""
    row, cut = context.table["marlin"], site.shard
    size = fields.group_size
    return (cut.n_full % row["thread_n"] == 0 and cut.k_full % row["thread_k"] == 0
            and (size >= cut.k_full or size == -1 or cut.k_full % size == 0))


def check_marlin_shape(context: Context, site: Site, group_size: int) -> None:
    """Refuse a rank's shard that Marlin does not serve."""
    row, cut = context.table["marlin"], site.shard
    size = cut.k_full if group_size == -1 else group_size
    way_out = "Consider reducing tensor_parallel_size or running with --quantization gptq."
    if cut.n % row["thread_n"]:
        raise _refused(f"Weight output_size_per_partition = {cut.n} is not divisible by  "
                       f"min_thread_n = {row['thread_n']}. {way_out}", site, cut.n_full,
                       row["thread_n"], "tiles")
    if cut.k % row["thread_k"]:
        raise _refused(f"Weight input_size_per_partition = {cut.k} is not divisible by "
                       f"min_thread_k = {row['thread_k']}. {way_out}", site, cut.k_full,
                       row["thread_k"], "tiles")
    if size < cut.k_full and cut.k % size:
        raise _refused(f"Weight input_size_per_partition = {cut.k} is not divisible by "
                       f"group_size = {size}. {way_out}", site, cut.k_full, size, "groups")


def _refused(message: str, site: Site, features: int, size: int, pieces: str) -> Exception:
    return refuse("shapes under TP", "ValueError", message, site.path, SHAPES,
                  hint=whole_pieces(features, size, pieces))


def refused_bits(bits: Any, path: str | None = None) -> Exception:
    """Return the refusal of other weights than those of 4 bits."""
    return refuse("config fields" if path is None else "layer assignment", "ValueError",
                  "Currently, only 4-bit weight quantization is supported for AWQ, but got "
                  f"{bits} bits.", path, SOURCE, hint="Serve a 4-bit AWQ checkpoint.")


def check_plain(size: int, site: Site) -> None:
    """Refuse a rank's shard that the plain kernels do not serve in groups of this size."""
    cut = site.shard
    if size == -1:
        raise refuse("layer assignment", "RuntimeError", "Trying to create tensor with negative "
                     f"dimension {-cut.k}: [{-cut.k}, {cut.n // PACK}]", site.path, SCHEME,
                     hint="Plain AWQ kernels take groups only: quantize in groups of 128.")
    if size < 1:
        raise NotKnownError(f"plain AWQ kernels with group size {size}",
                            hint="What the engine makes of it is not in the table.")
    for value, pieces, word in ((cut.k, size, "input"), (cut.n, PACK, "output")):
        if value % pieces:
            raise refuse("shapes under TP", "ValueError", f"The {word} size is not aligned with "
                         "the quantized weight shape. This can be caused by too large tensor "
                         "parallel size.", site.path, SCHEME,
                         hint="Choose a smaller tensor parallel size.")
