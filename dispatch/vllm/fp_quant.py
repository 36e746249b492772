"""quant_method fp_quant: MXFP4 or NVFP4 after a Hadamard transform, one fixed path
(model_executor/layers/quantization/fp_quant.py)."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.fields import Config, names, need
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

SOURCE = "model_executor/layers/quantization/fp_quant.py:FPQuantLinearMethod.create_weights"
FORWARD_DTYPES = ("mxfp4", "nvfp4")


class FpQuantFields(NamedTuple):
    """FPQuantConfig after construction."""

    hadamard: int = 32
    forward_dtype: Any = "mxfp4"
    skipped: tuple[str, ...] = ()


def read(config: Config, context: Context) -> FpQuantFields:
    """Return the fields of the checkpoint, or refuse as FPQuantConfig.from_config does."""
    size, dtype = need(config, "hadamard_group_size"), need(config, "forward_dtype")
    need(config, "forward_method")
    need(config, "modules_to_not_convert")
    if not isinstance(size, int) or size < 1:
        raise CheckpointError("quantization config: hadamard_group_size",
                              wanted="a positive whole number", found=repr(size)[:60])
    return FpQuantFields(size, dtype, names(config, "modules_to_not_convert"))


def default(context: Context) -> FpQuantFields:
    """Return the class's own fields, of a checkpoint without a config."""
    return FpQuantFields()


def assign(fields: FpQuantFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a layer; a skipped embedding or lm_head is 16-bit by this method."""
    if any(site.path.endswith(name) for name in fields.skipped):
        return Assignment("UnquantizedLinearMethod", why="named in modules_to_not_convert")
    if site.module.split == "vocab":
        return None
    if site.shard.k % fields.hadamard:
        raise refuse("shapes under TP", "ValueError",
                     "The input size is not aligned with the quantized weight shape. This can be "
                     "caused by too large tensor parallel size. Or other skill issues.", site.path,
                     SOURCE, hint=f"{site.shard.k} is no multiple of {fields.hadamard}.")
    if fields.forward_dtype not in FORWARD_DTYPES:
        raise refuse("layer assignment", "AssertionError",
                     "Only mxfp4 and nvfp4 are supported for now", site.path, SOURCE)
    return Assignment("FPQuantLinearMethod", act="group", why="QuTLASS, W4A4 "
                      f"{fields.forward_dtype}: this method looks for no kernel")
