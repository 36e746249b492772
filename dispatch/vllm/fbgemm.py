"""quant_method fbgemm_fp8: FP8 weights per channel, activations per token
(model_executor/layers/quantization/fbgemm_fp8.py)."""

from __future__ import annotations

from quantplan.dispatch.vllm import fp8
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.fields import Config, names, need
from quantplan.dispatch.vllm.ignore import is_skipped
from quantplan.tables.record import NamedTuple


class FbgemmFields(NamedTuple):
    """FBGEMMFp8Config after construction."""

    ignored: tuple[str, ...]


def read(config: Config, context: Context) -> FbgemmFields:
    """Return the fields of the checkpoint, or refuse as FBGEMMFp8Config.from_config does."""
    need(config, "modules_to_not_convert")
    need(config, "activation_scale_ub")
    return FbgemmFields(names(config, "modules_to_not_convert"))


def assign(fields: FbgemmFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; None for embeddings and lm_head."""
    if site.module.split == "vocab":
        return None
    if is_skipped(site.path, fields.ignored, context.structure.packed, substring=False):
        return Assignment("UnquantizedLinearMethod", why="named in modules_to_not_convert")
    quant = fp8.scale_quant("channel", "token", static=False)
    return Assignment("FBGEMMFp8LinearMethod", None, "fp8_w8a8", quant, fp8.act_name(quant))
