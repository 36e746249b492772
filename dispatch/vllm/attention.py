"""KV cache dtype, attention backend and KV method of one Attention layer
(platforms/cuda.py:_get_backend_priorities; model_executor/layers/attention/attention.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.candidates import alternatives, mark_considered, verdict_of
from quantplan.dispatch.predicates import FAIL, PASS, Check, applies, evaluate, fill
from quantplan.dispatch.trace import Candidate, Layer, Refusal, Selection
from quantplan.dispatch.vllm.context import Context, Site, refuse
from quantplan.dispatch.vllm.ct_args import STRATEGIES
from quantplan.tables.errors import NotKnownError, UsageError

E5M2_SOURCE = "model_executor/layers/attention/attention.py:_init_kv_cache_quant"
COVERED = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")
FP8_DTYPES = ("fp8", "fp8_e4m3", "fp8_e5m2")
SCHEME_STRATEGIES = ("tensor", "attn_head")


def check_kv_flag(table: Mapping[str, Any], requested: str) -> None:
    """Raise UsageError for a --kv-cache-dtype that is no choice, NotKnownError for a gap."""
    if requested not in table["kv_cache_dtypes"]:
        raise UsageError(f"--kv-cache-dtype {requested}",
                         wanted="one of " + ", ".join(table["kv_cache_dtypes"]))
    if requested not in COVERED:
        raise NotKnownError(f"--kv-cache-dtype {requested}", wanted="one of " + ", ".join(COVERED),
                            hint="Its backends and layouts are not in the table yet.")


def attention_layer(
    context: Context, site: Site, kv_method: str | None, kv_scheme: Mapping[str, Any] | None,
    checkpoint_dtype: str | None = None,
) -> Layer:
    """Return the attention layer's backend, KV dtype and KV method, or refuse."""
    _check_heads(context, site)
    dtype = kv_dtype(context.deployment.kv_cache_dtype, kv_scheme, checkpoint_dtype)
    check_kv_flag(context.table, dtype)
    facts = _facts(context, site, dtype, kv_scheme)
    key = ("attention", dtype, *site.module.facts.values())
    if key not in context.walks:
        context.walks[key] = _select(context, facts)
    selection = context.walks[key]
    if selection.kernel is None and not selection.alternatives:
        words = fill(context.table["attention"]["none_valid"],
                     {**facts, "reasons": selection.error})
        raise refuse("kernel selection", "ValueError", words, site.path,
                     context.table["attention"]["source"], selection=selection)
    if selection.kernel is not None:
        selection = _construct(context, site, selection, facts)
    if kv_method is not None:
        _check_kv_method(context, site, kv_method, kv_scheme, dtype)
    return Layer(site.module_path, site.module.module, layer_index=site.layer_index,
                 method=kv_method, attn_backend=selection.kernel, kv_cache_dtype=dtype,
                 selection=selection)


def kv_dtype(
    requested: str, kv_scheme: Mapping[str, Any] | None, checkpoint_dtype: str | None
) -> str:
    """Return the cache dtype of a layer: auto is what a ModelOpt checkpoint says, and fp8 under a
    compressed-tensors scheme."""
    if requested != "auto":
        return requested
    return "fp8" if kv_scheme is not None else checkpoint_dtype or requested


def _facts(
    context: Context, site: Site, dtype: str, scheme: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        **context.facts,
        "attn.head_dim": site.module.facts["head_dim"],
        "attn.sliding_window": context.structure.sliding_window is not None,
        "attn.flash_fp8_kv": _flash_fp8_kv(context, site.module.facts["head_dim"], dtype),
        "kv.dtype": dtype,
        "kv.is_fp8": dtype in FP8_DTYPES,
        "kv.per_head_scales": scheme is not None and scheme.get("strategy") == "attn_head",
    }


def _flash_fp8_kv(context: Context, head: int, dtype: str) -> bool:
    """Return whether FlashAttention 3 (9.0) or 4 (10.x, or head size 512 on 9.0) reads this cache
    (v1/attention/backends/fa_utils.py:get_flash_attn_version and
    flash_attn_supports_kv_cache_dtype)."""
    family = context.facts["gpu.family"]
    if dtype == "fp8_e5m2":
        return False
    exact = context.facts["env.VLLM_BATCH_INVARIANT"]
    if family == 100:
        return head <= 128 and not exact
    return family == 90 and (head <= 256 or (head == 512 and not exact))


def _select(context: Context, facts: Mapping[str, Any]) -> Selection:
    attention = context.table["attention"]
    rows = {row["id"]: row for row in attention["backends"]}
    order = next(o["backends"] for o in attention["order"] if applies(o.get("when"), facts))
    tried = [_candidate(rows[name], facts) for name in order]
    chosen = next((c.kernel for c in tried if c.verdict == PASS), None)
    tried = mark_considered(tried, chosen)
    reasons = ", ".join(f"{c.kernel}: [{c.reason}]" for c in tried)
    error = None if chosen else "{" + reasons + "}"
    return Selection("attention", chosen, tuple(tried), (), alternatives(tried, chosen), error)


def _candidate(row: Mapping[str, Any], facts: Mapping[str, Any]) -> Candidate:
    source = f"{row['file']}:{row['id']}"
    found = [evaluate(r, facts, row["id"], source) for r in row["requires"]]
    checks = tuple(check for check in found if check is not None)
    verdict = verdict_of(checks)
    return Candidate(row["id"], verdict, checks, source, _reason(checks))


def _reason(checks: tuple[Check, ...]) -> str | None:
    """Return all reasons as the engine lists them; a failed import leaves nothing else to ask."""
    failed = [check for check in checks if check.verdict != PASS]
    imports = [check for check in failed if check.fact.startswith("lib.")]
    return ", ".join(dict.fromkeys(_says(check) for check in imports or failed)) or None


def _check_heads(context: Context, site: Site) -> None:
    sizes, tp = context.structure.sizes, context.deployment.tp
    heads, kv_heads = sizes["num_attention_heads"] // tp, max(1, sizes["num_key_value_heads"] // tp)
    if heads % kv_heads:
        raise refuse("shapes under TP", "AssertionError",
                     f"num_heads ({heads}) is not divisible by num_kv_heads ({kv_heads})",
                     site.path, "model_executor/layers/attention/attention.py:Attention.__init__",
                     hint="config.json: num_attention_heads is a multiple of num_key_value_heads.")


def _construct(
    context: Context, site: Site, selection: Selection, facts: Mapping[str, Any]
) -> Selection:
    """Return the selection; without its backend where that refuses and unknown facts may choose
    another one before it."""
    try:
        _check_constructor(context, site, str(selection.kernel), facts)
    except Refusal as refusal:
        if not selection.alternatives:
            raise
        return selection._replace(kernel=None, error=refusal.error.message)
    return selection


def _check_constructor(
    context: Context, site: Site, backend: str, facts: Mapping[str, Any]
) -> None:
    row = next(r for r in context.table["attention"]["backends"] if r["id"] == backend)
    source = f"{row['file']}:{backend}"
    for requirement in row.get("refuses", ()):
        check = evaluate(requirement, facts, backend, source)
        if check is not None and check.verdict == FAIL:
            raise refuse("kernel selection", "ValueError", _says(check), site.path, source,
                         hint="Drop the FP8 KV cache here: --kv-cache-dtype auto."
                         if facts["kv.is_fp8"] else None)


def _says(check: Check) -> str:
    return check.says or check.text


def _check_kv_method(
    context: Context, site: Site, method: str, scheme: Mapping[str, Any] | None, dtype: str
) -> None:
    loads_scales = method != "CompressedTensorsKVCacheMethod" or scheme is not None
    if method == "CompressedTensorsKVCacheMethod" and scheme is not None:
        _check_scheme(site, scheme)
    if dtype == "fp8_e5m2" and loads_scales:
        raise refuse("layer assignment", "ValueError",
                     "fp8_e5m2 kv-cache is not supported with fp8 checkpoints.", site.path,
                     E5M2_SOURCE, hint="Use --kv-cache-dtype fp8_e4m3.")


def _check_scheme(site: Site, scheme: Mapping[str, Any]) -> None:
    source = ("model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:"
              "CompressedTensorsKVCacheMethod.validate_kv_cache_scheme")
    kind, bits = scheme.get("type"), scheme.get("num_bits")
    if kind != "float" or bits != 8:
        raise refuse("layer assignment", "NotImplementedError",
                     "Currently supported kv cache quantization is num_bits=8, type=float, "
                     f"however received num_bits={bits}, type={kind}", site.path, source)
    strategy = scheme.get("strategy")
    if strategy not in STRATEGIES:
        raise refuse("layer assignment", "ValueError",
                     f"{strategy!r} is not a valid QuantizationStrategy", site.path, source)
    if strategy not in SCHEME_STRATEGIES:
        raise refuse("layer assignment", "NotImplementedError",
                     "Invalid strategy for compressed-tensors KV cache. Expected strategies: "
                     "(<QuantizationStrategy.TENSOR: 'tensor'>, <QuantizationStrategy.ATTN_HEAD: "
                     f"'attn_head'>), found strategy: QuantizationStrategy.{strategy.upper()}",
                     site.path, source)
    if not scheme.get("symmetric"):
        raise refuse("layer assignment", "NotImplementedError",
                     "Only support symmetric scaling factor for compressed-tensors KV cache. "
                     f"However found symmetric: {scheme.get('symmetric')}", site.path, source)
