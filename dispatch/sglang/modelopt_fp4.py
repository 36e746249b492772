"""ModelOpt checkpoints of NVFP4 (layers/quantization/modelopt_quant.py:ModelOptFp4Config), and
what --quantization modelopt_fp4 makes of others: dense layers keep what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantplan.dispatch.sglang import nvfp4_online
from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, given, is_fp8_scheme, names, whole
from quantplan.dispatch.sglang.ignore import is_skipped
from quantplan.dispatch.sglang.modelopt import excluded_names, is_excluded, served_config
from quantplan.dispatch.sglang.nvfp4_experts import nvfp4_experts
from quantplan.dispatch.sglang.nvfp4_online import OnlineFields
from quantplan.dispatch.shard import whole_pieces
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import CheckpointError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/modelopt_quant.py:ModelOptFp4Config.from_config"
SHAPES = "layers/quantization/modelopt_quant.py:{}.create_weights"
ALGOS = ("FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4")
PACK = 16
"""Input features that the layers' methods ask a rank to hold a multiple of."""
KV_NAMES: Mapping[str, str] = {
    "FP8": "FP8", "FLOAT8": "FP8", "FP4": "NVFP4", "FLOAT4": "NVFP4", "NVFP4": "NVFP4"}
"""kv_cache_scheme as text -> the KV cache's algorithm; any other is auto."""


class Fp4Fields(NamedTuple):
    """What ModelOptFp4Config keeps."""

    algo: str
    group_size: int
    excluded: tuple[str, ...]
    kv_algo: str


Fields = Fp4Fields | OnlineFields


def read(config: Config | None, context: Context) -> Fields:
    """Return the fields, or refuse as ModelOptFp4Config does: those of an FP8 checkpoint, or of
    none, are of the class that quantizes experts while loading."""
    served = served_config(context) or config
    if served is None:
        return nvfp4_online.online_fields({}, context)
    if str(served.get("quant_method", "")).lower() == "fp8":
        return nvfp4_online.online_fields(served, context)
    parts = _nested if served.get("quant_algo") is None else _flat
    algo, group_size, excluded, kv_algo = parts(served, context)
    if algo not in ALGOS:
        raise _refused("ModelOpt currently only supports: FP8, NVFP4, NVFP4_AWQ, W4A16_NVFP4 "
                       "quantizations in sglang. Please check the quantization config for your "
                       "model's configuration.")
    if group_size is None or excluded is None:
        raise _refused("NVFP4 quantization requires group_size and exclude_modules specified in "
                       "the quantization config")
    size = whole(group_size, "group_size")
    if size < 1:
        raise CheckpointError("quantization config: group_size", wanted="a positive whole number",
                              found=str(size))
    return Fp4Fields(algo, size, excluded_names(context, names(excluded, "exclude_modules")),
                     kv_algo)


def _flat(config: Config, context: Context) -> tuple[Any, Any, Any, str]:
    """Return algorithm, group size, excluded names and KV algorithm of a config.json."""
    algo, size = config["quant_algo"], config.get("group_size")
    groups = config.get("config_groups")
    if size is None and isinstance(groups, Mapping) and groups:
        weights = next(iter(groups.values())).get("weights", {})
        size = weights.get("group_size")
    if size is None and "NVFP4" in algo:
        size = 16
    excluded = given(config, *context.table["modelopt_fp4_excludes"], default=[])
    return algo, size, excluded, _flat_kv(config)


def _flat_kv(config: Config) -> str:
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return "FP8" if is_fp8_scheme(scheme) else "auto"
    if isinstance(scheme, str):
        return KV_NAMES.get(scheme.strip().upper(), "auto")
    return str(config.get("kv_cache_quant_algo") or "auto")


def _nested(config: Config, context: Context) -> tuple[Any, Any, Any, str]:
    """Return the same of a hf_quant_config.json."""
    inner = config.get("quantization")
    sizes = set(_group_sizes(config))
    if not isinstance(inner, Mapping) or "quant_algo" not in inner or len(sizes) != 1:
        raise _refused("Cannot find 'quant_algo' in the model's quantization config. Expected "
                       "either flat format (config.json) or nested format "
                       "(hf_quant_config.json).")
    return (inner["quant_algo"], sizes.pop(), inner.get("exclude_modules", []),
            str(inner.get("kv_cache_quant_algo") or "auto"))


def _group_sizes(config: Config) -> Iterator[int]:
    """Yield every group size that the config states (ModelOptFp4Config.common_group_size)."""
    groups = [group for group in (config.get("config_groups") or {}).values()
              if isinstance(group, Mapping)]
    parts = [part for group in groups for part in group.values() if isinstance(part, Mapping)]
    for place in (config, config.get("quantization"), *groups, *parts):
        size = place.get("group_size") if isinstance(place, Mapping) else None
        if isinstance(size, int):
            yield size


def _refused(message: str) -> Exception:
    return refuse("config fields", "ValueError", message, None, SOURCE,
                  hint="Export the checkpoint with ModelOpt's NVFP4 recipe.")


def config_class(fields: Fields) -> str | None:
    """Return the class where it is not the method's own."""
    return "_ModelOptFp4OnlineConfig" if isinstance(fields, OnlineFields) else None


def kv_algo(fields: Fields) -> str | None:
    """Return what the checkpoint says of the KV cache."""
    return None if isinstance(fields, OnlineFields) else fields.kv_algo


def kv_method(fields: Fields) -> str | None:
    """Return the method of attention layers: NVFP4 checkpoints always have one."""
    serialized = isinstance(fields, Fp4Fields) and fields.algo != "FP8"
    return "ModelOptFp8KVCacheMethod" if serialized else None


def assign(fields: Fields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer or of lm_head."""
    if isinstance(fields, OnlineFields):
        return nvfp4_online.assign(fields, context, site)
    if site.module.split == "vocab" and site.module.module != "ParallelLMHead":
        return None
    if fields.algo == "FP8":
        return unquantized("the config's algorithm is FP8: the class quantizes experts only")
    if _excluded(fields, context, site.path):
        return unquantized("named in the excluded modules")
    a16 = fields.algo == "W4A16_NVFP4"
    _check_shape(site, a16)
    facts = {"quant.group_size": fields.group_size}
    if a16:
        return Assignment("ModelOptNvFp4A16LinearMethod", None, "modelopt_fp4_a16", facts)
    return Assignment("ModelOptFp4LinearMethod", None, "modelopt_fp4",
                      {**facts, "nvfp4.swiglu": _may_fuse(fields, context, site)})


def _may_fuse(fields: Fp4Fields, context: Context, site: Site) -> bool:
    """Return whether the model class runs the product along with its activation, and with the
    quantization of that for the layer behind, where the GPU has it
    (models/deepseek_v2.py:DeepseekV2MoE)."""
    behind = site.module.facts.get("fuses_swiglu_for")
    limit = context.checkpoint.text_config.get("swiglu_limit")
    return behind is not None and limit is None and not _excluded(
        fields, context, site.path.rpartition(".")[0] + f".{behind}")


def fuses_shared(fields: Fields) -> bool:
    """Return whether shared experts may be among the routed ones: none of them is left in 16 bits
    (ModelOptFp4Config.can_fuse_shared_expert)."""
    return isinstance(fields, OnlineFields) or not any(
        "shared_expert" in name and "shared_expert_gate" not in name for name in fields.excluded)


def _excluded(fields: Fp4Fields, context: Context, path: str) -> bool:
    return is_skipped(context, path, fields.excluded) or is_excluded(path, fields.excluded)


def experts(fields: Fields, context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of routed experts, which 16-bit activations do not change."""
    if isinstance(fields, OnlineFields):
        return nvfp4_online.experts(fields, context, site, held)
    if is_excluded(site.path, fields.excluded):
        return unquantized_experts("named in the excluded modules")
    return nvfp4_experts(context, site, held, fields.group_size)


def _check_shape(site: Site, a16: bool) -> None:
    if site.shard.k % PACK == 0:
        return
    message = ("Unsupported model when input feature size is not a multiple of 16" if a16 else
               "Unsupported model when in features size is not multiple of 16")
    name = "ModelOptNvFp4A16LinearMethod" if a16 else "ModelOptFp4LinearMethod"
    raise refuse("shapes under TP", "ValueError", message, site.path, SHAPES.format(name),
                 hint=whole_pieces(site.shard.k_full, PACK, "groups"))
