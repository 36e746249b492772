"""What was asked, for a person: the checkpoint, the GPU and the engine's command line."""

from __future__ import annotations

from collections.abc import Sequence

from quantplan.dispatch.facts import LIB_STATES, Checkpoint, Deployment, Gpu
from quantplan.dispatch.trace import Trace
from quantplan.tables.record import NamedTuple


class Shown(NamedTuple):
    """One engine's trace with the question it answers."""

    checkpoint: Checkpoint
    gpu: Gpu
    deployment: Deployment
    trace: Trace


def question(shown: Shown, dtypes: Sequence[str] = ()) -> str:
    """Return what was asked, in one line; `dtypes` are those of several engines' answers."""
    gpu, named = shown.gpu, f"compute capability {shown.gpu.capability_text}"
    where = named if gpu.origin == "capability" else f"{gpu.name}, {named}"
    dtype = " or ".join(dict.fromkeys(dtypes or (shown.trace.dtype,)))
    return ", ".join([f"{model_words(shown.checkpoint)} on {where}", f"tp {shown.deployment.tp}",
                      dtype, *deployment_words(shown.deployment)])


def model_words(checkpoint: Checkpoint) -> str:
    """Return the checkpoint's name, and that it is hypothetical where it is."""
    imagined = any(note.id == "hypothetical" for note in checkpoint.notes)
    return checkpoint.name + (" (hypothetical)" if imagined else "")


def deployment_words(deployment: Deployment) -> list[str]:
    """Return the flags that were given, but for tp and dtype."""
    words: list[str] = []
    if deployment.quantization:
        words.append(f"--quantization {deployment.quantization}")
    words += [f"--quantization-config {name}={value}"
              for name, value in (deployment.quantization_config or {}).items()]
    if deployment.kv_cache_dtype != "auto":
        words.append(f"--kv-cache-dtype {deployment.kv_cache_dtype}")
    if deployment.linear_backend != "auto":
        words.append(f"--linear-backend {deployment.linear_backend}")
    words += [deployment.backend_words(family)
              for family in deployment.linear_backend_per_quant or ()]
    if deployment.moe_backend != "auto":
        words.append(f"--moe-backend {deployment.moe_backend}")
    words += ["--enable-expert-parallel"] if deployment.expert_parallel else []
    words += [f"dp {deployment.dp}"] if deployment.dp > 1 else []
    words += [f"{option} {asked}" for option, asked in (
        ("--attention-backend", deployment.attention_backend),
        ("--prefill-attention-backend", deployment.prefill_attention_backend),
        ("--decode-attention-backend", deployment.decode_attention_backend),
        ("--mm-attention-backend", deployment.mm_attention_backend),
        ("--page-size", deployment.page_size)) if asked]
    words += [f"--attention-config {name}={value}"
              for name, value in deployment.attention_config.items()]
    words += [f"{option} {asked}" for option, asked in (
        ("--mm-encoder-attn-backend", deployment.mm_encoder_attn_backend),
        ("--mm-encoder-attn-dtype", deployment.mm_encoder_attn_dtype)) if asked]
    words += [f"{option} {asked}" for option, asked in (
        ("--fp8-gemm-backend", deployment.fp8_gemm_backend),
        ("--fp4-gemm-backend", deployment.fp4_gemm_backend)) if asked != "auto"]
    words += [f"--kv-cache-dtype-skip-layers {name}"
              for name in deployment.kv_cache_dtype_skip_layers]
    if deployment.block_size:
        words.append(f"--block-size {deployment.block_size}")
    words += [f"--env {name}={value}" for name, value in deployment.env.items()]
    states = {state: word for word, state in LIB_STATES.items()}
    words += [f"--lib {name}={states[state]}" for name, state in deployment.libs.items()]
    return words
