"""What versions of vLLM do differently: answers of each version's own code (oracle)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from quantplan.tables.engine_rows import load_engine
from quantplan.tables.versions import engine_versions

from quantplan import Explanation, explain

DISPATCH = Path(__file__).parents[2] / "dispatch"


def ask(version: str, quant: str | None = None, **options: Any) -> Explanation:
    config = dict(LLAMA)
    if quant is not None:
        config["quantization_config"] = quantization(quant)
    options.setdefault("capability", "9.0")
    return explain(config, engine_version=version, **options)


def refusal(answer: Explanation) -> str | None:
    return answer.trace.error.message if answer.trace.error else None


@pytest.mark.parametrize("name", [
    row["id"] for row in load_engine("vllm")["traits"].values()])
def test_every_trait_is_read_by_a_rule(name: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DISPATCH.rglob("*.py")]
    assert any(f'"{name}"' in text for text in texts)


def test_versions_have_the_same_traits() -> None:
    """A trait that only one version has would be a KeyError in another."""
    names = [sorted(load_engine("vllm", version)["traits"]) for version in engine_versions("vllm")]
    assert names == [names[0]] * len(names)


# --kv-cache-dtype of the other 16-bit dtype.


@pytest.mark.parametrize("dtype, kv, allowed", [
    ("bfloat16", "float16", "`auto` or `bfloat16`"), ("float16", "bfloat16", "`auto` or `float16`"),
    ("float32", "bfloat16", "`auto`"), ("float32", "float16", "`auto`"),
])
def test_0_33_refuses_a_16_bit_cache_that_is_not_the_models(
    dtype: str, kv: str, allowed: str
) -> None:
    answer = ask("0.33.0", dtype=dtype, kv_cache_dtype=kv)
    assert refusal(answer) == (
        f'kv_cache_dtype="{kv}" is incompatible with dtype="{dtype}". Please set '
        f"`--kv-cache-dtype` to {allowed}.")
    assert answer.trace.error is not None
    assert answer.trace.error.type == "ValidationError"
    assert answer.trace.error.source == (
        "config/vllm.py:VllmConfig._reject_mismatched_float_kv_cache")


@pytest.mark.parametrize("version, dtype, kv", [
    ("0.33.0", "bfloat16", "bfloat16"), ("0.33.0", "float16", "float16"),
    ("0.33.0", "float16", "auto"), ("0.32.0", "bfloat16", "float16"),
])
def test_what_stays_allowed(version: str, dtype: str, kv: str) -> None:
    assert refusal(ask(version, dtype=dtype, kv_cache_dtype=kv)) is None


def test_the_cache_is_refused_before_heads_and_behind_the_method() -> None:
    """Order of VllmConfig.__post_init__; the method's name is ModelConfig's business."""
    heads = ask("0.33.0", dtype="float16", kv_cache_dtype="bfloat16", tp=3)
    assert str(refusal(heads)).startswith('kv_cache_dtype="bfloat16"')
    method = ask("0.33.0", "gptq4-g128", dtype="float16", kv_cache_dtype="bfloat16",
                 quantization="awq")
    assert str(refusal(method)).startswith("Quantization method specified in the model config")


# compressed-tensors W4A16 under VLLM_BATCH_INVARIANT.


@pytest.mark.parametrize("version, flag, kernel", [
    ("0.32.0", "1", "MacheteLinearKernel"), ("0.33.0", "0", "MacheteLinearKernel"),
    ("0.33.0", "1", None),
])
def test_0_33_looks_for_no_integer_kernel_under_batch_invariance(
    version: str, flag: str, kernel: str | None
) -> None:
    answer = ask(version, "ct-w4a16", env={"VLLM_BATCH_INVARIANT": flag})
    layer = next(x for x in answer.trace.layers if x.path.endswith("qkv_proj"))
    assert (layer.scheme, layer.kernel) == ("CompressedTensorsWNA16", kernel)
    assert layer.why == (None if kernel else "env.VLLM_BATCH_INVARIANT is true: the weight is "
                         "unpacked and multiplied in 16 bits")


def test_groups_that_straddle_ranks_are_refused_without_a_kernel_too() -> None:
    """create_weights of the scheme divides the groups whatever the kernel."""
    config = {**LLAMA, "intermediate_size": 14336 + 64,
              "quantization_config": quantization("ct-w4a16")}
    answer = explain(config, engine_version="0.33.0", capability="9.0",
                     env={"VLLM_BATCH_INVARIANT": "1"})
    assert str(refusal(answer)).startswith("Weight input_size_per_partition=14400 for layer "
                                           "'model.layers.0.mlp.down_proj' is not divisible by")


# DeepGEMM and MXFP8.


@pytest.mark.parametrize("version, capability, kernel", [
    ("0.33.0", "9.0", "TorchMxFp8LinearKernel"), ("0.33.0", "8.9", None),
    ("0.32.0", "8.9", "MarlinMxfp8LinearKernel"),
])
def test_linear_backend_torch_for_mxfp8(
    version: str, capability: str, kernel: str | None
) -> None:
    """0.32.0 has no MXFP8 kernel of that backend and tries the whole list."""
    answer = ask(version, "ct-mxfp8", capability=capability, linear_backend="torch")
    if kernel is None:
        assert str(refusal(answer)).endswith(
            "TorchMxFp8LinearKernel: requires XPU or CUDA (>=sm_90) for native torch._scaled_mm")
    else:
        assert {x.kernel for x in answer.trace.layers if x.kernel and not x.attn_backend} == {
            kernel}
