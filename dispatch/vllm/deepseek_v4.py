"""quant_method deepseek_v4_fp8: block FP8 as fp8 has it, and MXFP8 where the blocks are 32 x 32
(models/deepseek_v41/quant_config.py)."""

from __future__ import annotations

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm import fp8, modelopt
from quantplan.dispatch.vllm.context import Assignment, Context, Site
from quantplan.dispatch.vllm.fields import Config
from quantplan.dispatch.vllm.ignore import is_skipped

EXPERT_DTYPES = ("fp4", "fp8")
MX_BLOCK = (32, 32)
SOURCE = "models/deepseek_v41/quant_config.py:DeepseekV4FP8Config"


def read(config: Config, context: Context) -> fp8.Fp8Fields:
    """Return the fields of the checkpoint, or refuse as Fp8Config.from_config does."""
    return fp8.read(config, context)


def default(context: Context) -> fp8.Fp8Fields:
    """Return the class's own fields, of a checkpoint without a config."""
    return fp8.Fp8Fields(False, (), None, None)


def expert_dtype(context: Context, path: str) -> str:
    """Return the model's expert_dtype, by which the block scales of linear layers are read too."""
    found = context.checkpoint.config.get("expert_dtype", "fp4")
    if found not in EXPERT_DTYPES:
        raise refuse("layer assignment", "ValueError",
                     f"Unsupported DeepSeek V4 expert_dtype={found!r}; expected one of "
                     f"{EXPERT_DTYPES}.", path, f"{SOURCE}.expert_dtype")
    return str(found)


def assign(fields: fp8.Fp8Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; None for embeddings and lm_head."""
    if site.module.split == "vocab":
        return None
    scaled = expert_dtype(context, site.path) == "fp4" if fields.block == MX_BLOCK else False
    if is_skipped(site.path, fields.ignored, context.structure.packed, substring=False):
        return Assignment("UnquantizedLinearMethod", why="named in ignored_layers")
    if scaled:
        return modelopt.linear(context.table, site, "MXFP8")
    expert_dtype(context, site.path)
    return fp8.assign(fields, context, site)
