"""quant_method awq: AutoAWQConfig (model_executor/layers/quantization/auto_awq.py)."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site, trait
from quantplan.dispatch.vllm.fields import Config, names, need
from quantplan.dispatch.vllm.headers import assumed_plain, unquantized_modules
from quantplan.dispatch.vllm.ignore import is_skipped
from quantplan.dispatch.vllm.integers import (
    act_words,
    integer_quant,
    marlin_input_dtype,
    marlin_unsupported,
)
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

SOURCE = "model_executor/layers/quantization/auto_awq.py:AutoAWQConfig"
ALIGN_SOURCE = (
    "model_executor/layers/quantization/auto_awq.py:BaseAWQLinearMethod.create_weights")

MARLIN_SHAPE_SOURCE = (
    "model_executor/layers/quantization/utils/marlin_utils.py:check_marlin_supports_layer")


class AwqFields(NamedTuple):
    """AutoAWQConfig after construction and after it looked into the safetensors headers."""

    bits: int
    group: int
    zero_point: bool
    lm_head: bool
    skipped: tuple[str, ...]
    config: Config

    @property
    def skips_substrings(self) -> bool:
        """Return whether an entry of the skip list is a part of a name, not a name."""
        return True


def read(config: Config, context: Context) -> AwqFields:
    """Return the fields of an AWQ checkpoint, or refuse as AutoAWQConfig does."""
    bits = need(config, "w_bit", "bits")
    group = need(config, "q_group_size", "group_size")
    zero_point = need(config, "zero_point")
    skipped = names(config, "modules_to_not_convert")
    check_bits(bits)
    if group != -1 and group < 1:
        raise CheckpointError("quantization config: group_size", wanted="-1 or a positive number",
                              found=str(group))
    skipped = skipped or (*unquantized_modules(context.checkpoint),
                          *assumed_plain(context.checkpoint, context.structure))
    return AwqFields(bits, group, bool(zero_point), bool(config.get("lm_head")), skipped,
                     config)


def check_bits(bits: Any, layer: str | None = None) -> None:
    """Refuse other than 4 bits, as the class does when it is built for the model or for a layer."""
    if bits != 4:
        raise refuse("layer assignment" if layer else "config fields",
                     "ValueError" if layer else "ValidationError",
                     f"Unsupported num_bits = {bits}. Supported: 4. For 8-bit AWQ, use Marlin "
                     "backend by setting backend='awq:marlin' or backend='marlin'.", layer, SOURCE,
                     hint="This version serves 4-bit AWQ only.")


def assign(fields: AwqFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a layer: Marlin-checked kernel list, or the plain Triton path."""
    if site.module.split == "vocab" and not (site.is_head and fields.lm_head):
        return None
    if is_skipped(site.path, fields.skipped, context.structure.packed, substring=True):
        return Assignment("UnquantizedLinearMethod", why="named in modules_to_not_convert, or "
                          "stored in 16 bits")
    reason = _not_marlin(fields, context, site)
    if reason:
        check_alignment(site, fields.bits, fields.group)
        return Assignment("AutoAWQLinearMethod", act="none", mode="W4A16",
                          why=f"plain AWQ: {reason}")
    act = marlin_input_dtype(context, site) or context.dtype
    quant = integer_quant(site, "uint4", fields.bits, fields.group, fields.zero_point, act)
    return Assignment("AutoAWQMarlinLinearMethod", None, "mixed_precision", quant, act_words(act))


def _not_marlin(fields: AwqFields, context: Context, site: Site) -> str | None:
    if context.facts["env.VLLM_BATCH_INVARIANT"]:
        return "VLLM_BATCH_INVARIANT is set and Marlin kernels are not batch invariant"
    reason = marlin_unsupported(
        context.gpu.capability, "uint4", fields.group, fields.zero_point)
    if reason:
        return reason
    if site.module.split == "vocab" and not trait(context.table, "head_has_sizes"):
        raise refuse("layer assignment", "AttributeError",
                     "'ParallelLMHead' object has no attribute 'output_size'", site.path,
                     MARLIN_SHAPE_SOURCE,
                     hint="This version cannot load a quantized lm_head of an AWQ checkpoint.")
    group, shard = fields.group, site.shard
    if group == -1 or group >= shard.k_full or shard.k % group == 0:
        return None
    return f"the group of {group} does not divide the {shard.k} inputs of one rank"


def check_alignment(site: Site, bits: int, group: int) -> None:
    """Refuse sizes that the plain method's packed tensors do not hold."""
    group = group if group != -1 else site.shard.k_full
    if group == 0:
        raise refuse("layer assignment", "ZeroDivisionError", "integer modulo by zero", site.path,
                     ALIGN_SOURCE, hint="A group size is -1 or a positive number.")
    for size, multiple, word in ((site.shard.k, group, "input"),
                                 (site.shard.n, 32 // bits, "output")):
        if size % multiple:
            raise refuse("shapes under TP", "ValueError",
                         f"The {word} size is not aligned with the quantized weight shape. This "
                         "can be caused by too large tensor parallel size.", site.path,
                         ALIGN_SOURCE, hint=f"{size} is not a multiple of {multiple}; use a tensor "
                         "parallel size that leaves whole groups.")
