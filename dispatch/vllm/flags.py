"""Flags whose values the engine checks before it reads the checkpoint (config/kernel.py)."""

from __future__ import annotations

from collections.abc import Mapping

from quantplan.dispatch.facts import Deployment
from quantplan.dispatch.vllm.context import Table
from quantplan.dispatch.vllm.kv_cache import check_kv_flag
from quantplan.tables.errors import UsageError


def check_flags(table: Table, deployment: Deployment) -> None:
    """Raise UsageError for a flag's value that the engine does not have."""
    _check_backend(table, "--linear-backend", deployment.linear_backend)
    _check_per_quant(table, deployment.linear_backend_per_quant)
    if deployment.moe_backend not in table["moe_backends"]:
        raise UsageError(f"--moe-backend {deployment.moe_backend}",
                         wanted=", ".join(table["moe_backends"]))
    check_kv_flag(table, deployment.kv_cache_dtype)
    dtypes, asked = table["attention"]["encoder"]["dtypes"], deployment.mm_encoder_attn_dtype
    if asked is not None and asked not in dtypes:
        raise UsageError(f"--mm-encoder-attn-dtype {asked}", wanted=", ".join(dtypes))


def _check_per_quant(table: Table, overrides: Mapping[str, str] | None) -> None:
    """Every family takes a name (unknown ones change nothing), but at least one must be given, and
    dashes are not read as underscores here (config/kernel.py:KernelConfig)."""
    if overrides is not None and not overrides:
        raise UsageError("linear_backend_per_quant", wanted="at least one family", found="none")
    for family, backend in (overrides or {}).items():
        _check_backend(table, f"linear_backend_per_quant: {family}:", backend)


def _check_backend(table: Table, option: str, backend: str) -> None:
    if backend != "auto" and backend not in table["linear_backends"]:
        raise UsageError(f"{option} {backend}",
                         wanted="auto, " + ", ".join(table["linear_backends"]))
