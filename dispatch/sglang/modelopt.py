"""ModelOpt checkpoints of FP8 with one scale per weight (layers/quantization/modelopt_quant.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from quantplan.dispatch.sglang.context import Assignment, Context, Site, unquantized
from quantplan.dispatch.sglang.experts import PADDED_UNDER, Experts, unquantized_experts
from quantplan.dispatch.sglang.fields import Config, is_fp8_scheme, names
from quantplan.dispatch.sglang.ignore import is_skipped
from quantplan.dispatch.sglang.names import own_config
from quantplan.dispatch.sglang.renames import all_renamed
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError
from quantplan.tables.record import NamedTuple

SOURCE = "layers/quantization/modelopt_quant.py:ModelOptFp8Config.from_config"
LANGUAGE = "language_model."
FUSED_PARTS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
"""Parts of fused layers that an excluded name may be (ModelOptQuantConfig.is_layer_excluded)."""


class ModelOptFields(NamedTuple):
    """What ModelOptFp8Config keeps: the names that it leaves alone, the KV cache's algorithm."""

    excluded: tuple[str, ...]
    kv_algo: str | None


def read(config: Config | None, context: Context) -> ModelOptFields:
    """Return the fields, or refuse as ModelOptFp8Config does: a flat config's `ignore` and
    kv_cache_scheme, a nested one's exclude_modules and kv_cache_quant_algo."""
    served = served_config(context) or config or {}
    algo = served.get("quant_algo")
    if algo is not None:
        kv_algo, excluded = _flat_kv(served), served.get("ignore")
    else:
        inner = served.get("quantization")
        if not isinstance(inner, Mapping):
            raise _refused("Cannot find 'quant_algo' in the model's quantization config. Expected "
                           "either flat format (config.json) or nested format "
                           "(hf_quant_config.json).")
        algo, kv_algo = inner.get("quant_algo"), inner.get("kv_cache_quant_algo")
        excluded = inner.get("exclude_modules")
    if algo is None:
        raise _refused("Cannot find 'quant_algo' in the model's quantization config. ")
    if algo != "FP8":
        raise _refused("ModelOptFp8Config only supports regular FP8 quantization, but found "
                       f"{algo!r}. Use the native 'mxfp8' quantization method for MXFP8 or "
                       "ModelOptFp4Config for FP4.")
    return ModelOptFields(excluded_names(context, names(excluded, "exclude_modules")), kv_algo)


def served_config(context: Context) -> Config | None:
    """Return the config that the class reads: config.json's own, else the file beside it."""
    own = own_config(context.table, context.checkpoint)
    found: Any = own if own is not None else context.checkpoint.side_files.get(
        "hf_quant_config.json")
    return found if isinstance(found, Mapping) else None


def excluded_names(context: Context, excluded: Sequence[str]) -> tuple[str, ...]:
    """Return the excluded modules under the engine's names: where its class renames them, those of
    a language model with and without its prefix (ModelOptQuantConfig.apply_weight_name_mapper)."""
    if not context.renames:
        return tuple(excluded)
    return tuple(dict.fromkeys(
        form for name in all_renamed(context, excluded)
        for form in (name, name.removeprefix(LANGUAGE))))


def _flat_kv(config: Config) -> str | None:
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return "FP8" if is_fp8_scheme(scheme) else None
    return config.get("kv_cache_quant_algo")


def _refused(message: str) -> Exception:
    return refuse("config fields", "ValueError", message, None, SOURCE,
                  hint="Export the checkpoint with ModelOpt's FP8 recipe.")


def kv_algo(fields: ModelOptFields) -> str | None:
    """Return what the checkpoint says of the KV cache."""
    return fields.kv_algo


def kv_method(fields: ModelOptFields) -> str | None:
    """Return the method of attention layers: there is one where the checkpoint says anything."""
    return "ModelOptFp8KVCacheMethod" if fields.kv_algo else None


def assign(fields: ModelOptFields, context: Context, site: Site) -> Assignment | None:
    """Return the assignment of a linear layer or of lm_head."""
    if site.module.split == "vocab" and site.module.module != "ParallelLMHead":
        return None
    if is_skipped(context, site.path, fields.excluded) or is_excluded(site.path, fields.excluded):
        return unquantized("named in the excluded modules")
    return Assignment("ModelOptFp8LinearMethod", operators="modelopt_fp8",
                      facts={"fp8.act": "static"})


def experts(
    fields: ModelOptFields, context: Context, site: Site, held: Experts
) -> Assignment | None:
    """Return the assignment of routed experts. Raises NotKnownError for TRTLLM where the class says
    nothing of the form of the routing, which decides."""
    if is_excluded(site.path, fields.excluded):
        return unquantized_experts("named in the excluded modules")
    if context.facts["moe.backend"] in PADDED_UNDER and not context.facts["moe.routing"]:
        raise NotKnownError("ModelOpt's FP8 experts on FlashInfer TRTLLM",
                            hint="Pass --moe-backend triton.")
    return Assignment("ModelOptFp8MoEMethod", operators="experts_modelopt_fp8",
                      facts={"moe.act": "static"})


def is_excluded(path: str, excluded: Sequence[str]) -> bool:
    """Return whether a name of the list, with * for anything, is the path or a part of it; a part
    of a fused latent projection leaves the whole alone."""
    paths = [path, *([path.removeprefix(LANGUAGE)] if path.startswith(LANGUAGE) else [])]
    return any(_excludes(name, paths) for name in excluded)


def _excludes(name: str, paths: Sequence[str]) -> bool:
    pattern = re.compile(".*".join(map(re.escape, name.split("*"))))
    tail = name.rsplit(".", maxsplit=1)[-1]
    return any(pattern.fullmatch(path) or any(map(pattern.fullmatch, path.split(".")))
               or (tail in FUSED_PARTS and tail in path.rsplit(".", maxsplit=1)[-1])
               for path in paths)
