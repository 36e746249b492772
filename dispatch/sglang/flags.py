"""Flags that are vLLM's, and values that are none of SGLang's."""

from __future__ import annotations

from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.sglang.context import Table
from quantplan.tables.errors import NotKnownError, UsageError
from quantplan.tables.near_names import did_you_mean, near_names

VLLM_ONLY = (
    "quantization_config", "linear_backend", "linear_backend_per_quant", "dp",
    "allow_deprecated_quantization", "attention_config", "mm_encoder_attn_backend",
    "mm_encoder_attn_dtype", "kv_cache_dtype_skip_layers", "block_size")
NOT_YET = ("attention_backend", "prefill_attention_backend", "decode_attention_backend",
           "mm_attention_backend", "page_size")
"""Fields of Deployment that SGLang has under another name and that its table does not cover."""


def check_flags(table: Table, deployment: Deployment) -> None:
    """Raise UsageError for flags that SGLang does not have and values that it does not know,
    NotKnownError for flags that are not in the table."""
    default = Deployment()
    for fields, error in ((VLLM_ONLY, UsageError), (NOT_YET, NotKnownError)):
        for name in fields:
            if getattr(deployment, name) != getattr(default, name):
                flag = f"--{name.replace('_', '-')}"
                raise error(f"{flag} with SGLang", wanted="flags of SGLang" if error is UsageError
                            else "a question without it", hint=f"Drop {flag}.")
    if deployment.kv_cache_dtype not in ("auto", *table["kv_dtypes"]):
        raise NotKnownError(f"SGLang with --kv-cache-dtype {deployment.kv_cache_dtype}",
                            wanted="auto, " + ", ".join(table["kv_dtypes"]),
                            hint="Which attention backends take it is not in the table yet.")
    for asked, flag, rows in (
            (deployment.fp8_gemm_backend, "--fp8-gemm-backend", table["fp8_backends"]),
            (deployment.fp4_gemm_backend, "--fp4-gemm-backend", table["fp4_backends"]),
            (deployment.moe_backend, "--moe-backend", table["moe_backends"])):
        if asked not in rows:
            raise UsageError(f"{flag} {asked}", wanted="one of " + ", ".join(rows),
                             hint=did_you_mean(near_names(asked, rows)))
    if table["moe_backends"][deployment.moe_backend].get("not_known"):
        raise NotKnownError(f"SGLang with --moe-backend {deployment.moe_backend}",
                            hint="What runs then is not in the table yet.")
