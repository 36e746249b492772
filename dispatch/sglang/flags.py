"""Flags that are vLLM's, and values that are none of SGLang's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from quantplan.dispatch.environment import check_known
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, capability_family
from quantplan.dispatch.sglang.context import Table
from quantplan.dispatch.sglang.models import built, model_row
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError, UsageError
from quantplan.tables.near_names import did_you_mean, near_names

VLLM_ONLY = (
    "quantization_config", "linear_backend", "linear_backend_per_quant", "dp",
    "allow_deprecated_quantization", "attention_config", "mm_encoder_attn_backend",
    "mm_encoder_attn_dtype", "kv_cache_dtype_skip_layers", "block_size")

OWN_NAMES = {"fp8": "fp8_e4m3"}
"""A value of vLLM's -> SGLang's."""


def check_flags(table: Table, deployment: Deployment) -> None:
    """Raise UsageError for flags that SGLang does not have and values that it does not know,
    NotKnownError for values and environment variables whose effect is not in the table."""
    default = Deployment()
    for name in VLLM_ONLY:
        if getattr(deployment, name) != getattr(default, name):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} with SGLang", wanted="flags of SGLang", hint=f"Drop {flag}.")
    check_known(table["environment"], deployment)
    _check_attention(table["attention"], deployment)
    for asked, flag, rows in (
            (deployment.kv_cache_dtype, "--kv-cache-dtype", ("auto", *table["kv_dtypes"])),
            (deployment.fp8_gemm_backend, "--fp8-gemm-backend", table["fp8_backends"]),
            (deployment.fp4_gemm_backend, "--fp4-gemm-backend", table["fp4_backends"]),
            (deployment.moe_backend, "--moe-backend", table["moe_backends"])):
        _check_name(flag, asked, rows)


def spread(table: Table, gpu: Gpu, deployment: Deployment) -> Deployment:
    """Return the deployment, with experts spread over all ranks where --moe-backend names an
    exchange of tokens between these; refuses GPUs that do not have it."""
    row = table["moe_backends"][deployment.moe_backend].get("spreads")
    if row is None:
        return deployment
    if capability_family(gpu.capability) not in row["families"]:
        raise refuse("flags", row["type"], row["message"], None, row["source"],
                     hint="Drop --moe-backend.")
    return deployment._replace(expert_parallel=True)


def check_runner(table: Table, checkpoint: Checkpoint, asked: str) -> None:
    """Raise NotKnownError for a --moe-backend that is not in the table, where the model has routed
    experts: for others the flag decides nothing."""
    if not table["moe_backends"][asked].get("not_known"):
        return
    row = model_row(table, checkpoint)
    if not row or any(module.kind == "experts" for module in built(checkpoint, row).modules):
        raise NotKnownError(f"SGLang with --moe-backend {asked}",
                            hint="What runs then is not in the table yet.")


def renamed(table: Table, deployment: Deployment) -> Deployment:
    """Return the deployment with the variables that have a former prefix under the names that
    SGLang gives them: these win (environ.py:_handle_deprecated_envs)."""
    names = table["former_prefix"]
    old, new = names["old"], names["new"]
    found = {new + name[len(old):]: value for name, value in deployment.env.items()
             if name.startswith(old)}
    return deployment._replace(env={**deployment.env, **found}) if found else deployment


def _check_attention(rows: Mapping[str, Any], deployment: Deployment) -> None:
    """Check the backends of attention, and that a chunk of a prefill holds whole pages."""
    for flag, asked in (("--attention-backend", deployment.attention_backend),
                        ("--prefill-attention-backend", deployment.prefill_attention_backend),
                        ("--decode-attention-backend", deployment.decode_attention_backend)):
        _check_name(flag, asked, rows["choices"])
    _check_name("--mm-attention-backend", deployment.mm_attention_backend, rows["encoder_choices"])
    if rows["prefill_chunk"] % (deployment.page_size or 1):
        raise NotKnownError(f"SGLang with --page-size {deployment.page_size}",
                            wanted=f"a size that divides {rows['prefill_chunk']}",
                            hint="The engine refuses pages that do not divide the chunks of its "
                            "prefill, whose size follows from the GPU's memory.")


def _check_name(flag: str, asked: str | None, known: Collection[str]) -> None:
    if asked is not None and asked not in known:
        own = OWN_NAMES.get(asked)
        raise UsageError(f"{flag} {asked}", wanted="one of " + ", ".join(known),
                         hint=f"SGLang calls it {own}." if own in known else did_you_mean(
                             near_names(asked, known)))
