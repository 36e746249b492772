"""What the choice of attention and KV cache does later, or does unasked."""

from __future__ import annotations

import gzip
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import ask, found, only, starts

GOLDEN = Path(__file__).parents[1] / "golden" / "attention-vllm-0.32.0.jsonl.gz"
DEEPSEEK, GLM = "DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM"
QWEN_GDN, NEMOTRON = "Qwen3_5MoeForConditionalGeneration", "NemotronHForCausalLM"


@cache
def configs() -> dict[str, Any]:
    """Return architecture -> a config of the golden rows, unquantized where there is one."""
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line)["case"]["config"] for line in lines]
    plain = sorted(rows, key=lambda config: "quantization_config" not in config)
    return {config["architectures"][0]: config for config in plain}


def deepseek(**changes: Any) -> dict[str, Any]:
    """Return a dense DeepSeek-V3 of R1's attention."""
    sizes = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
             "kv_lora_rank": 512, "num_attention_heads": 128, "num_key_value_heads": 128}
    return {**configs()[DEEPSEEK], **sizes, **changes}


# Backends without machine code.


def test_mla_prefill_on_7_5_is_not_compiled() -> None:
    """The prefill list ends in FlashAttention and asks no capability; FlashAttention 2 holds code
    for 8.0 and up."""
    answer = ask(None, "7.5", model=deepseek())
    finding = only(answer, "attention-not-compiled")
    assert (finding.stage, finding.severity) == ("first forward", "error")
    assert finding.message == (
        "model.layers.0.self_attn.mla_attn.mla_attn: FlashAttnPrefillBackend is selected, but "
        "FlashAttention is compiled for 8.0 and up: it cannot run on 7.5")
    assert starts(answer) == "no"


@pytest.mark.parametrize("capability", ["8.0", "9.0", "10.0", "12.0"])
def test_mla_prefill_is_compiled_elsewhere(capability: str) -> None:
    assert found(ask(None, capability, model=deepseek()), "attention-not-compiled") == []


@pytest.mark.parametrize(("capability", "compiled"), [
    ("8.0", False), ("8.9", False), ("9.0", True), ("10.0", True), ("10.3", True), ("11.0", False)])
def test_sparse_attention_of_deepseek_v4(capability: str, compiled: bool) -> None:
    """Its backend is chosen without asking the device; FlashMLA holds code for 9.0 and 10.x."""
    hits = found(ask(None, capability, model=configs()["DeepseekV4ForCausalLM"]),
                 "attention-not-compiled")
    told = ("model.layers.0.attn: FLASHMLA_SPARSE_DSV4 is selected, but FlashMLA is compiled for "
            f"9.x and 10.x only: it cannot run on {capability}")
    assert [hit.message for hit in hits] == ([] if compiled else [told])


def test_sparse_attention_of_deepseek_v4_on_12_x() -> None:
    answer = ask(None, "12.0", model=configs()["DeepseekV4ForCausalLM"])
    assert found(answer, "attention-not-compiled") == []
    assert {layer.attn_backend for layer in answer.trace.layers
            if layer.path.endswith(".attn")} == {"FLASHINFER_MLA_SPARSE_DSV4"}


# Recurrent states.


@pytest.mark.parametrize("architecture, backend", [
    (QWEN_GDN, "GDN_ATTN"), (NEMOTRON, "MAMBA2_ATTN")])
def test_a_recurrent_state_is_not_batch_invariant(architecture: str, backend: str) -> None:
    """v1/attention/selector.py:_cached_get_mamba_attn_backend, once caches are laid out."""
    answer = ask(None, "9.0", model=configs()[architecture], env={"VLLM_BATCH_INVARIANT": "1"})
    assert answer.trace.error is None
    assert only(answer, "state-not-batch-invariant").message == (
        f"VLLM batch_invariant mode is not supported for {backend}.")
    assert {layer.attn_backend for layer in answer.trace.layers
            if layer.module in ("MambaMixer2", "QwenGatedDeltaNetAttention")} == {None}


def test_a_recurrent_state_without_batch_invariance() -> None:
    answer = ask(None, "9.0", model=configs()[NEMOTRON])
    assert found(answer, "state-not-batch-invariant") == []


# KV dtypes that are not those asked for.


@pytest.mark.parametrize("capability, changed", [("10.0", True), ("10.3", True), ("9.0", False)])
def test_glm_5_is_served_with_fp8_kv_on_10_x(capability: str, changed: bool) -> None:
    """model_executor/models/config.py:GlmMoeDsaForCausalLM."""
    answer = ask(None, capability, model=configs()[GLM])
    assert [f.message for f in found(answer, "kv-dtype-changed")] == [
        "--kv-cache-dtype auto becomes fp8_e4m3: the engine serves GLM-5 with an FP8 KV cache on "
        "10.x unless told otherwise"] * changed
    assert answer.trace.kv_cache["resolved"] == ("fp8_e4m3" if changed else "auto")


def test_a_kv_scheme_that_latent_attention_does_not_read() -> None:
    """MLAAttention takes the cache config's dtype; only Attention applies the scheme."""
    answer = ask("ct-fp8-kv", "9.0", model=deepseek())
    assert only(answer, "kv-scheme-not-read").severity == "warning"
    assert {layer.kv_cache_dtype for layer in answer.trace.layers if layer.attn_backend} == {"auto"}
    asked = ask("ct-fp8-kv", "9.0", model=deepseek(), kv_cache_dtype="fp8")
    assert found(asked, "kv-scheme-not-read") == []


def test_a_kv_scheme_that_attention_reads() -> None:
    assert found(ask("ct-fp8-kv", "9.0"), "kv-scheme-not-read") == []


def test_packed_kv_leaves_the_ends_alone() -> None:
    """model_executor/layers/quantization/turboquant/config.py:TurboQuantConfig."""
    six = {**configs()["LlamaForCausalLM"], "num_hidden_layers": 6, "head_dim": 128}
    six.pop("quantization_config", None)
    answer = ask(None, "9.0", model=six, kv_cache_dtype="turboquant_4bit_nc")
    attention = [layer for layer in answer.trace.layers if layer.attn_backend]
    assert [layer.kv_cache_dtype for layer in attention] == [
        "auto", "auto", "turboquant_4bit_nc", "turboquant_4bit_nc", "auto", "auto"]
    assert [layer.attn_backend for layer in attention[1:3]] == ["FLASH_ATTN", "TURBOQUANT"]
    assert only(answer, "kv-packed-boundary").message == (
        "--kv-cache-dtype turboquant_4bit_nc: 4 layers at the ends keep the model's dtype, and "
        "FlashAttention is held to version 2")


# --block-size.


def test_a_block_size_that_rules_out_better_backends() -> None:
    """platforms/cuda.py:CudaPlatformBase.get_attn_backend_cls warns of it."""
    answer = ask(None, "10.0", model=deepseek(), block_size=16)
    assert only(answer, "block-size-precludes").message == (
        "--block-size 16 rules out FLASHINFER_MLA, CUTLASS_MLA: TRITON_MLA is used instead")
    assert found(ask(None, "10.0", model=deepseek(), block_size=64), "block-size-precludes") == []


# Refusals of a whole model.


@pytest.mark.parametrize("dtype", ["nvfp4", "nvfp4_4over6"])
def test_nvfp4_kv_with_latent_attention(dtype: str) -> None:
    """config/vllm.py:VllmConfig.validate_nvfp4_kv_cache_with_mla."""
    error = ask(None, "10.0", model=deepseek(), kv_cache_dtype=dtype).trace.error
    assert error is not None
    assert (error.stage, error.type, error.layer) == ("flags", "ValidationError", None)
    assert error.message.startswith("nvfp4 KV cache is not supported with MLA (Multi-head Latent")


def test_an_indexer_without_deepgemm() -> None:
    """model_executor/layers/sparse_attn_indexer.py:SparseAttnIndexer."""
    error = ask(None, "9.0", model=configs()[GLM], libs={"deep_gemm": False}).trace.error
    assert error is not None
    assert (error.type, error.message) == (
        "RuntimeError", "Sparse Attention Indexer CUDA op requires DeepGEMM support in the current "
                        "vLLM environment.")


def test_two_ways_to_name_a_backend() -> None:
    error = ask(None, "9.0", attention_backend="FLASH_ATTN",
                attention_config={"backend": "TRITON_ATTN"}).trace.error
    assert error is not None
    assert (error.type, error.message) == (
        "ValueError", "attention_backend and attention_config.backend are mutually exclusive")


def test_a_block_size_that_no_backend_takes_is_the_cause() -> None:
    error = ask(None, "9.0", block_size=7).trace.error
    assert error is not None
    assert error.hint == "Drop --block-size 7."
