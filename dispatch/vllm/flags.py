"""Flags whose values the engine checks before it reads the checkpoint (config/kernel.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.vllm.context import Table
from quantplan.dispatch.vllm.kv_cache import check_kv_flag
from quantplan.tables.errors import UsageError
from quantplan.tables.near_names import did_you_mean, near_names

SGLANG_ONLY: Mapping[str, str] = {
    "fp8_gemm_backend": "--linear-backend", "fp4_gemm_backend": "--linear-backend",
    "prefill_attention_backend": "--attention-backend",
    "decode_attention_backend": "--attention-backend",
    "mm_attention_backend": "--mm-encoder-attn-backend", "page_size": "--block-size"}
"""Fields of Deployment that only SGLang has -> what vLLM has in their place."""


def check_flags(table: Table, deployment: Deployment) -> None:
    """Raise UsageError for a flag's value that the engine does not have."""
    for field, own in SGLANG_ONLY.items():
        if getattr(deployment, field) != getattr(Deployment(), field):
            raise UsageError(f"--{field.replace('_', '-')} with vLLM", wanted="flags of vLLM",
                             hint=f"It is SGLang's; vLLM has {own}.")
    _check_backend(table, "--linear-backend", deployment.linear_backend)
    _check_per_quant(table, deployment.linear_backend_per_quant)
    _check_name("--moe-backend", deployment.moe_backend, table["moe_backends"])
    check_kv_flag(table, deployment.kv_cache_dtype)
    dtypes, asked = table["attention"]["encoder"]["dtypes"], deployment.mm_encoder_attn_dtype
    if asked is not None:
        _check_name("--mm-encoder-attn-dtype", asked, dtypes)


def _check_per_quant(table: Table, overrides: Mapping[str, str] | None) -> None:
    """Every family takes a name (unknown ones change nothing), but at least one must be given, and
    dashes are not read as underscores here (config/kernel.py:KernelConfig)."""
    if overrides is not None and not overrides:
        raise UsageError("linear_backend_per_quant", wanted="at least one family", found="none")
    for family, backend in (overrides or {}).items():
        _check_backend(table, f"linear_backend_per_quant: {family}:", backend)


def _check_backend(table: Table, option: str, backend: str) -> None:
    _check_name(option, backend, ("auto", *table["linear_backends"]))


def _check_name(option: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UsageError(f"{option} {name}", wanted=", ".join(known),
                         hint=did_you_mean(near_names(name, known)))
