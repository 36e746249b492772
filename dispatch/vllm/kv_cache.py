"""The KV cache's dtype: what the flag, the checkpoint and the engine make of it, layer by layer,
and the method that loads its scales (utils/torch_utils.py:resolve_kv_cache_dtype_string,
model_executor/layers/attention/attention.py:Attention)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.ct_args import STRATEGIES
from quantplan.dispatch.predicates import applies
from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm.attention_facts import is_fp8, is_quantized, window
from quantplan.dispatch.vllm.context import Context, Site
from quantplan.tables.errors import UsageError
from quantplan.tables.near_names import did_you_mean, near_names

Row = Mapping[str, Any]
SCHEME_STRATEGIES = ("tensor", "attn_head")
SCHEME_HINT = ("Remove kv_cache_scheme from the quantization config, or write an 8-bit float, "
               "symmetric one per tensor or per head.")
CT_METHOD = "CompressedTensorsKVCacheMethod"


def check_kv_flag(table: Row, requested: str) -> None:
    """Raise UsageError for a --kv-cache-dtype that is no choice."""
    choices = [row["id"] for row in table["kv_cache"]["dtypes"]]
    if requested not in choices:
        raise UsageError(f"--kv-cache-dtype {requested}", wanted="one of " + ", ".join(choices),
                         hint=did_you_mean(near_names(requested, choices)))


def configured(context: Context, asked: str) -> str:
    """Return the dtype that the engine's cache config has before any layer is built; `asked` is
    the flag's, or what a ModelOpt checkpoint makes of its auto."""
    found = (str(row["to"]) for row in context.table["kv_cache"]["changes"]
             if asked == row["from"] and context.structure.architecture in row["architectures"]
             and applies(row.get("when"), context.facts))
    return next(found, asked)


def kv_dtype(requested: str, scheme: Row | None, checkpoint_dtype: str | None = None) -> str:
    """Return what attention layers make of a dtype: auto is what a ModelOpt checkpoint says, and
    fp8 under a compressed-tensors scheme."""
    if requested != "auto":
        return requested
    return "fp8" if scheme is not None else checkpoint_dtype or requested


def run_facts(context: Context, auto: str | None, scheme: Row | None) -> dict[str, Any]:
    """Return the facts of the cache that hold for the whole run: `auto` is what a ModelOpt
    checkpoint makes of the flag's auto, `scheme` a compressed-tensors KV scheme."""
    table = context.table
    asked = kv_dtype(context.deployment.kv_cache_dtype, None, auto)
    dtype = configured(context, asked)
    attends = any(m.quantized and scales_kind(table, m.module) == "attention"
                  for m in context.structure.modules)
    run = kv_dtype(dtype, scheme if attends else None)
    return {"kv.asked": asked, "kv.configured": dtype, "kv.scheme": scheme is not None,
            "kv.run_dtype": run, "kv.run_quantized": is_quantized(table, run),
            "kv.configured_fp8": is_fp8(dtype), "kv.skip_layers": skipped(context, dtype)}


def is_packed(table: Row, dtype: str) -> bool:
    """Return whether a dtype packs keys and values for a backend of its own."""
    return any(row["id"] == dtype and row.get("packed") for row in table["kv_cache"]["dtypes"])


def skipped(context: Context, dtype: str) -> tuple[str, ...]:
    """Return --kv-cache-dtype-skip-layers and the layers that a packed dtype leaves alone."""
    asked = context.deployment.kv_cache_dtype_skip_layers
    states = context.table["attention"]["modules"]
    hybrid = any(states.get(m.module, {}).get("state") for m in context.structure.modules)
    if not is_packed(context.table, dtype) or hybrid:
        return asked
    layers = context.structure.num_layers
    ends = min(context.table["kv_cache"]["packed"]["boundary_layers"], layers // 2)
    boundary = (*range(ends), *range(layers - ends, layers))
    return (*asked, *(str(index) for index in boundary))


def check_packed(context: Context) -> None:
    """Refuse a packed dtype for a hybrid whose attention layers the engine cannot name."""
    row = context.table["kv_cache"]["packed"]
    named, dtype = row["unidentified"], context.deployment.kv_cache_dtype
    if is_packed(context.table, dtype) and context.structure.family in named["families"]:
        raise refuse("flags", named["type"], named["says"], None, row["source"],
                     hint="Drop --kv-cache-dtype.")


def check_model(context: Context, dtype: str) -> None:
    """Refuse dtypes that the engine refuses for models of latent attention as a whole."""
    row, states = context.table["kv_cache"]["mla_refuses"], context.table["attention"]["modules"]
    if dtype in row["dtypes"] and any(
            states.get(m.module, {}).get("mla") for m in context.structure.modules):
        raise refuse("flags", row["type"], row["says"], None, row["source"],
                     hint="Drop --kv-cache-dtype.")


def layer_dtype(context: Context, site: Site) -> str:
    """Return the cache dtype of a layer: the run's, or auto where the layer is left alone or its
    class does not pass the run's on; a checkpoint's scheme makes FP8 of that."""
    if site.module.facts.get("without_cache_config"):
        return "fp8" if context.facts["kv.scheme"] else "auto"
    kind, skip = scales_kind(context.table, site.module.module), context.facts["kv.skip_layers"]
    if kind and skip and sum(part.isdecimal() for part in site.path.split(".")) != 1:
        raise refuse("layer assignment", "AssertionError",
                     f"layer name {site.path} should only contain one integer", site.path,
                     "model_executor/models/utils.py:extract_layer_index",
                     hint="Drop --kv-cache-dtype-skip-layers.")
    windowed = kind == "attention" and window(context, site.module.facts) is not None
    alone = str(site.layer_index) in skip or (windowed and "sliding_window" in skip)
    return "auto" if kind and alone else str(context.facts["kv.run_dtype"])


def scales_kind(table: Row, module: str) -> str | None:
    """Return what config classes take a module class for when they attach a KV-cache method."""
    found: str | None = table["attention"]["modules"].get(module, {}).get("loads_scales_as")
    return found


def rewritten(backend: Row, dtype: str, facts: Row) -> str:
    """Return the cache dtype that the layer itself sets for its backend."""
    found = (str(row["to"]) for row in backend.get("cache", ())
             if dtype in row["from"] and applies(row.get("when"), facts))
    return next(found, dtype)


def check_method(
    context: Context, site: Site, method: str, scheme: Row | None, dtype: str
) -> None:
    """Refuse what the method that loads KV scales refuses."""
    loads_scales = method != CT_METHOD or scheme is not None
    if method == CT_METHOD and scheme is not None:
        _check_scheme(site, scheme)
    if dtype == "fp8_e5m2" and loads_scales:
        row = context.table["kv_cache"]
        raise refuse("layer assignment", "ValueError", row["e5m2_says"], site.path,
                     row["e5m2_source"], hint="Use --kv-cache-dtype fp8_e4m3.")


def _check_scheme(site: Site, scheme: Row) -> None:
    source = ("model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:"
              "CompressedTensorsKVCacheMethod.validate_kv_cache_scheme")
    kind, bits = scheme.get("type"), scheme.get("num_bits")
    if kind != "float" or bits != 8:
        raise refuse("layer assignment", "NotImplementedError",
                     "Currently supported kv cache quantization is num_bits=8, type=float, "
                     f"however received num_bits={bits}, type={kind}", site.path, source,
                     SCHEME_HINT)
    strategy = scheme.get("strategy")
    if strategy not in STRATEGIES:
        raise refuse("layer assignment", "ValueError",
                     f"{strategy!r} is not a valid QuantizationStrategy", site.path, source,
                     SCHEME_HINT)
    if strategy not in SCHEME_STRATEGIES:
        raise refuse("layer assignment", "NotImplementedError",
                     "Invalid strategy for compressed-tensors KV cache. Expected strategies: "
                     "(<QuantizationStrategy.TENSOR: 'tensor'>, <QuantizationStrategy.ATTN_HEAD: "
                     f"'attn_head'>), found strategy: QuantizationStrategy.{strategy.upper()}",
                     site.path, source, SCHEME_HINT)
    if not scheme.get("symmetric"):
        raise refuse("layer assignment", "NotImplementedError",
                     "Only support symmetric scaling factor for compressed-tensors KV cache. "
                     f"However found symmetric: {scheme.get('symmetric')}", site.path, source,
                     SCHEME_HINT)


def per_head(scheme: Row | None) -> bool:
    """Return whether a checkpoint's KV scheme has one scale per head."""
    return scheme is not None and scheme.get("strategy") == "attn_head"
