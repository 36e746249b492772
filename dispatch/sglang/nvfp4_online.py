"""NVFP4 made of experts while loading; dense layers keep their 16 bits or their FP8
(layers/quantization/nvfp4_online.py:NvFp4OnlineConfig)."""

from __future__ import annotations

from quantplan.dispatch.sglang import fp8
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, names
from quantplan.dispatch.sglang.fp8 import Fp8Fields
from quantplan.dispatch.sglang.ignore import both_forms, is_skipped
from quantplan.dispatch.sglang.modelopt import is_excluded
from quantplan.dispatch.sglang.nvfp4_experts import ONLINE, nvfp4_experts
from quantplan.tables.record import NamedTuple

PER_TOKEN = "nvfp4_online"
"""The method whose activations have a scale per token; under modelopt_fp4 they have one."""


class OnlineFields(NamedTuple):
    """What NvFp4OnlineConfig keeps: the names that it leaves alone, what Fp8LinearMethod reads of
    it where the checkpoint is FP8, and whether activations have a scale per token."""

    excluded: tuple[str, ...]
    fp8: Fp8Fields | None
    per_token: bool


def read(config: Config | None, context: Context) -> OnlineFields:
    """Return the fields; the class refuses none."""
    return online_fields(config or {}, context)


def online_fields(config: Config, context: Context) -> OnlineFields:
    """Return the fields of a checkpoint's config, which no other rule has read."""
    named = (config.get("ignore") or config.get("ignored_layers")
             or config.get("modules_to_not_convert"))
    excluded = both_forms(names([named] if isinstance(named, str) else named, "ignore"))
    per_token = context.facts["quant.method"] == PER_TOKEN
    if "fp8" not in str(config.get("quant_method", "")).lower():
        return OnlineFields(excluded, None, per_token)
    act = str(config.get("activation_scheme", "dynamic"))
    block = fp8.block_size(config.get("weight_block_size"))
    return OnlineFields(excluded, Fp8Fields(True, act, (), block), per_token)


def assign(fields: OnlineFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer; embeddings and lm_head are none of the class's."""
    if site.module.split == "vocab":
        return None
    if _is_ignored(fields, context, site):
        return unquantized("named in the excluded modules")
    if fields.fp8 is None:
        return unquantized("NVFP4 is made of experts only")
    return fp8.assign(fields.fp8, context, site)


def experts(fields: OnlineFields, context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of routed experts. Names of the checkpoint keep NVFP4 from them under
    modelopt_fp4 only, those of SGLANG_FP4_IGNORED_LAYERS always: an FP8 checkpoint's stay FP8."""
    ignored = _is_ignored(fields, context, site)
    if ignored and not fields.per_token:
        return unquantized_experts("named in the excluded modules")
    named = filter(None, map(str.strip, context.facts["env.SGLANG_FP4_IGNORED_LAYERS"].split(",")))
    if is_skipped(context, site.path, both_forms(named)):
        kept = None if ignored or fields.fp8 is None else fields.fp8
        return fp8.experts(kept, context, site, held) if kept else unquantized_experts(
            "named in SGLANG_FP4_IGNORED_LAYERS")
    return nvfp4_experts(context, site, held, method=ONLINE)


def _is_ignored(fields: OnlineFields, context: Context, site: Site) -> bool:
    return is_skipped(context, site.path, fields.excluded) or is_excluded(site.path,
                                                                          fields.excluded)
