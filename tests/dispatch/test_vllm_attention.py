"""Attention backend, KV cache dtype and KV method of vLLM 0.32.0. Where no golden row is cited, the
expected answer is the engine's own selection code, run for an emulated GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, message, quantization
from quantplan.dispatch.trace import Alternative, Layer
from quantplan.tables.errors import CheckpointError, UsageError

from quantplan import Explanation, explain

KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
TRITON_KV = ("FP8 KV cache is not supported by the Triton attention backend on Emulated GPU {0} "
             "(compute capability {0}); native FP8 (fp8e4nv) requires SM89+. Re-run with "
             "--kv-cache-dtype {1}.")


def heads(head_dim: int) -> dict[str, Any]:
    """Return Llama-3.1-8B with another head size."""
    return {**LLAMA, "head_dim": head_dim}


def attention(answer: Explanation) -> Layer:
    """Return the first attention layer; all are alike."""
    assert answer.trace.error is None, answer.trace.error
    found = [layer for layer in answer.trace.layers if layer.module == "Attention"]
    assert len({(x.attn_backend, x.kv_cache_dtype, x.method) for x in found}) == 1
    return found[0]


def scheme_kv(**changes: Any) -> Any:
    """Return a compressed-tensors FP8 config whose KV scheme has CHANGES."""
    return quantization("ct-fp8-dynamic", kv_cache_scheme={**KV, **changes})


# Order and choice.


@pytest.mark.parametrize("capability, backend", [
    ("7.5", "TRITON_ATTN"), ("8.0", "FLASH_ATTN"), ("8.6", "FLASH_ATTN"), ("8.9", "FLASH_ATTN"),
    ("9.0", "FLASH_ATTN"), ("10.0", "FLASHINFER"), ("10.3", "FLASHINFER"), ("11.0", "FLASH_ATTN"),
    ("12.0", "FLASH_ATTN"), ("12.1", "FLASH_ATTN")])
def test_the_backend_by_capability(capability: str, backend: str) -> None:
    """Rows llama8b/none/CAPABILITY."""
    layer = attention(ask(None, capability))
    assert (layer.attn_backend, layer.kv_cache_dtype, layer.method) == (backend, "auto", None)


@pytest.mark.parametrize("capability, first", [("9.0", "FLASH_ATTN"), ("10.0", "FLASHINFER"),
                                               ("12.0", "FLASH_ATTN")])
def test_flashinfer_leads_on_10_x_only(capability: str, first: str) -> None:
    """platforms/cuda.py:_get_backend_priorities."""
    selection = attention(ask(None, capability)).selection
    assert selection is not None
    names = [candidate.kernel for candidate in selection.candidates]
    assert names[0] == first
    assert sorted(names[:2]) == ["FLASHINFER", "FLASH_ATTN"]
    assert names[2:] == ["TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT"]


@pytest.mark.parametrize("head_dim, capability, backend", [
    (80, "8.0", "FLASH_ATTN"), (96, "10.0", "FLASH_ATTN"), (256, "10.0", "FLASHINFER"),
    (512, "8.0", "FLASHINFER"), (512, "9.0", "FLASH_ATTN"), (512, "11.0", "FLASH_ATTN"),
    (512, "12.0", "FLASHINFER"), (512, "7.5", "TRITON_ATTN"), (16, "7.5", "FLEX_ATTENTION"),
    (16, "8.0", "FLASH_ATTN"), (20, "9.0", "FLEX_ATTENTION")])
def test_the_backend_by_head_size(head_dim: int, capability: str, backend: str) -> None:
    assert attention(ask(None, capability, model=heads(head_dim))).attn_backend == backend


@pytest.mark.parametrize("head_dim, capability, backend", [
    (128, "10.0", "FLASH_ATTN"), (512, "8.0", "TRITON_ATTN"), (512, "12.0", "TRITON_ATTN")])
def test_the_backend_without_flashinfer(head_dim: int, capability: str, backend: str) -> None:
    answer = ask(None, capability, model=heads(head_dim), libs={"flashinfer": False})
    assert attention(answer).attn_backend == backend


@pytest.mark.parametrize("capability", ["7.5", "8.0", "9.0", "10.0"])
def test_float32_has_triton_only(capability: str) -> None:
    assert attention(ask(None, capability, dtype="float32")).attn_backend == "TRITON_ATTN"


# KV cache dtype.


@pytest.mark.parametrize("kv, capability, backend", [
    ("fp8", "8.9", "FLASHINFER"), ("fp8", "9.0", "FLASH_ATTN"), ("fp8_e4m3", "9.0", "FLASH_ATTN"),
    ("fp8", "10.0", "FLASHINFER"), ("fp8", "12.0", "FLASHINFER"), ("fp8", "8.0", "FLASHINFER"),
    ("fp8_e5m2", "9.0", "FLASHINFER"), ("bfloat16", "8.0", "FLASH_ATTN"),
    ("float16", "7.5", "TRITON_ATTN")])
def test_the_backend_by_kv_dtype(kv: str, capability: str, backend: str) -> None:
    layer = attention(ask(None, capability, kv_cache_dtype=kv))
    assert (layer.attn_backend, layer.kv_cache_dtype) == (backend, kv)


@pytest.mark.parametrize("head_dim, capability, backend", [
    (80, "8.9", "TRITON_ATTN"), (96, "12.0", "TRITON_ATTN"), (80, "9.0", "FLASH_ATTN"),
    (80, "10.0", "FLASH_ATTN"), (512, "11.0", "FLASHINFER"), (80, "11.0", "TRITON_ATTN")])
def test_the_backend_by_head_size_with_fp8_kv(head_dim: int, capability: str, backend: str) -> None:
    answer = ask(None, capability, model=heads(head_dim), kv_cache_dtype="fp8")
    assert attention(answer).attn_backend == backend


@pytest.mark.parametrize("capability, options, instead", [
    ("7.5", {}, "float16"), ("8.0", {"libs": {"flashinfer": False}}, "bfloat16"),
    ("8.6", {"libs": {"flashinfer": False}}, "bfloat16"),
    ("8.0", {"model": heads(80)}, "bfloat16")])
def test_triton_refuses_fp8_kv_below_8_9(
    capability: str, options: dict[str, Any], instead: str
) -> None:
    """triton_attn.py: raised by the backend that was chosen; row
    llama8b/none/75/kv_cache_dtype=fp8."""
    error = ask(None, capability, kv_cache_dtype="fp8", **options).trace.error
    assert error is not None
    assert (error.stage, error.type, error.layer, error.message) == (
        "kernel selection", "ValueError", "model.layers.0.self_attn.attn",
        TRITON_KV.format(capability, instead))


def test_triton_refuses_bfloat16_kv_below_8_0() -> None:
    """Row llama8b/none/75/kv_cache_dtype=bfloat16."""
    answer = ask(None, "7.5", kv_cache_dtype="bfloat16")
    assert message(answer) == (
        "bfloat16 KV cache is not supported on Emulated GPU 7.5 (compute capability 7.5); bfloat16 "
        "requires SM80+. Re-run with --kv-cache-dtype float16.")


def test_a_flag_beats_the_checkpoint_s_scheme() -> None:
    answer = ask("ct-fp8-kv", "9.0", kv_cache_dtype="bfloat16")
    assert attention(answer).kv_cache_dtype == "bfloat16"


# The checkpoint's scheme.


def test_a_kv_scheme_makes_auto_fp8() -> None:
    """Rows llama8b/ct-fp8-kv/90."""
    answer = ask("ct-fp8-kv", "9.0")
    layer = attention(answer)
    assert (layer.attn_backend, layer.kv_cache_dtype, layer.method) == (
        "FLASH_ATTN", "fp8", "CompressedTensorsKVCacheMethod")
    assert answer.to_dict()["kv_cache"] == {
        "requested": "auto", "resolved": "fp8", "method": "CompressedTensorsKVCacheMethod"}


@pytest.mark.parametrize("quant, method", [
    ("fp8-dynamic", "Fp8KVCacheMethod"), ("ct-fp8-dynamic", "CompressedTensorsKVCacheMethod"),
    ("awq4-g128", None), ("gptq4-g128", None), (None, None)])
def test_the_kv_method_is_the_config_class_s(quant: str | None, method: str | None) -> None:
    assert attention(ask(quant, "9.0")).method == method


@pytest.mark.parametrize("capability", ["9.0", "10.0"])
def test_per_head_scales_run_on_flash_attention_3_and_4(capability: str) -> None:
    layer = attention(ask(scheme_kv(strategy="attn_head"), capability))
    assert (layer.attn_backend, layer.kv_cache_dtype) == ("FLASH_ATTN", "fp8")


def test_no_backend_lists_every_reason() -> None:
    answer = ask(None, "9.0", model=heads(20), kv_cache_dtype="fp8")
    error = answer.trace.error
    assert error is not None
    assert (error.stage, error.type) == ("kernel selection", "ValueError")
    assert error.message == (
        "No valid attention backend found for cuda with AttentionSelectorConfig(head_size=20, "
        "dtype=torch.bfloat16, kv_cache_dtype=fp8, block_size=None, use_mla=False, has_sink=False, "
        "use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False, "
        "attn_type=AttentionType.DECODER, has_sliding_window=False, use_non_causal=False, "
        "use_batch_invariant=False, use_kv_connector=False, use_adaptive_verification=False, "
        "use_pcp=False, use_dcp=False, use_rswa=False). Reasons: {FLASH_ATTN: [head_size not "
        "supported], FLASHINFER: [head_size not supported], TRITON_ATTN: [head_size not "
        "supported], FLEX_ATTENTION: [kv_cache_dtype not supported], TURBOQUANT: [kv_cache_dtype "
        "not supported]}.")


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.9", "11.0", "12.0"])
def test_per_head_scales_have_no_backend_elsewhere(capability: str) -> None:
    words = message(ask(scheme_kv(strategy="attn_head"), capability))
    assert words.startswith("No valid attention backend found for cuda with "
                            "AttentionSelectorConfig(head_size=128, ")
    assert "use_per_head_quant_scales=True" in words


@pytest.mark.parametrize("changes, words", [
    ({"num_bits": 4}, "Currently supported kv cache quantization is num_bits=8, type=float, "
                      "however received num_bits=4, type=float"),
    ({"type": "int"}, "Currently supported kv cache quantization is num_bits=8, type=float, "
                      "however received num_bits=8, type=int"),
    ({"strategy": "channel"},
     "Invalid strategy for compressed-tensors KV cache. Expected strategies: "
     "(<QuantizationStrategy.TENSOR: 'tensor'>, <QuantizationStrategy.ATTN_HEAD: 'attn_head'>), "
     "found strategy: QuantizationStrategy.CHANNEL"),
    ({"symmetric": False}, "Only support symmetric scaling factor for compressed-tensors KV cache. "
                           "However found symmetric: False")])
def test_a_kv_scheme_that_the_method_refuses(changes: dict[str, Any], words: str) -> None:
    """compressed_tensors.py:CompressedTensorsKVCacheMethod.validate_kv_cache_scheme."""
    error = ask(scheme_kv(**changes), "9.0").trace.error
    assert error is not None
    assert (error.stage, error.type, error.message) == (
        "layer assignment", "NotImplementedError", words)


@pytest.mark.parametrize("quant", ["fp8-dynamic", "ct-fp8-kv"])
def test_e5m2_with_scales_to_load(quant: str) -> None:
    """attention.py:_init_kv_cache_quant; rows llama8b/fp8-dynamic/CAPABILITY/
    kv_cache_dtype=fp8_e5m2."""
    answer = ask(quant, "9.0", kv_cache_dtype="fp8_e5m2")
    assert message(answer) == "fp8_e5m2 kv-cache is not supported with fp8 checkpoints."


@pytest.mark.parametrize("quant", [None, "awq4-g128", "ct-fp8-dynamic"])
def test_e5m2_without_scales_to_load(quant: str | None) -> None:
    assert attention(ask(quant, "9.0", kv_cache_dtype="fp8_e5m2")).attn_backend == "FLASHINFER"


# What is not known.


def test_an_unknown_flashinfer_makes_the_backend_conditional() -> None:
    answer = ask(None, "10.0", libs={"flashinfer": None})
    layer = attention(answer)
    assert answer.trace.outcome == "conditional"
    assert layer.attn_backend == "FLASH_ATTN"
    assert layer.selection is not None
    assert layer.selection.alternatives == (
        Alternative("FLASHINFER", ("lib.flashinfer_installed",)),)


def test_an_unknown_flashinfer_that_decides_between_starting_and_not() -> None:
    """FP8 KV on 8.0 is FlashInfer or, by Triton, a refusal: neither answer is certain."""
    answer = ask(None, "8.0", kv_cache_dtype="fp8", libs={"flashinfer": None})
    assert answer.trace.outcome == "conditional"


def test_an_unknown_flashinfer_behind_the_choice_changes_nothing() -> None:
    answer = ask(None, "9.0", libs={"flashinfer": None})
    assert answer.trace.outcome == "ok"


# Flags.


def test_a_kv_dtype_that_is_no_choice() -> None:
    with pytest.raises(UsageError) as raised:
        ask(None, kv_cache_dtype="int8")
    assert str(raised.value) == (
        "--kv-cache-dtype int8; wanted one of auto, float16, bfloat16, fp8, fp8_e4m3, fp8_e5m2, "
        "fp8_inc, fp8_ds_mla, nvfp4_ds_mla, turboquant_k8v4, turboquant_4bit_nc, "
        "turboquant_k3v4_nc, turboquant_3bit_nc, ultraquant_4bit, int4_per_token_head, "
        "int8_per_token_head, fp8_per_token_head, nvfp4, nvfp4_4over6")


# Heads.


@pytest.mark.parametrize("kv_heads", [5, 64])
def test_query_heads_are_a_multiple_of_kv_heads(kv_heads: int) -> None:
    """attention.py:Attention.__init__ asserts it."""
    error = ask(None, model={**LLAMA, "num_key_value_heads": kv_heads}).trace.error
    assert error is not None
    assert (error.type, error.message) == (
        "AssertionError", f"num_heads (32) is not divisible by num_kv_heads ({kv_heads})")


@pytest.mark.parametrize("tp", [8, 16])
def test_gpt_oss_has_no_head_to_share(tp: int) -> None:
    """gpt_oss.py:OAIAttention divides its 8 key-value heads by the ranks with no floor of one, and
    the oracle's answer at 16 is attention.py's modulo by zero."""
    error = explain("gpt-oss-20b", engine_version="0.32.0", capability="9.0", tp=tp).trace.error
    found = error and (error.type, error.message)
    assert found == (None if tp == 8 else ("ZeroDivisionError", "integer modulo by zero"))


def test_gemma2_caps_its_logits_unasked() -> None:
    """Gemma2Config fills in attn_logit_softcapping 50.0, which FlexAttention's class refuses."""
    model = {**LLAMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2",
             "head_dim": 256}
    error = ask(None, model=model, attention_backend="FLEX_ATTENTION").trace.error
    assert error is not None and (error.type, error.message) == (
        "NotImplementedError", "FlexAttention does not support logits soft cap yet.")


@pytest.mark.parametrize("model", [{**LLAMA, "hidden_size": 4000},
                                   {**LLAMA, "num_attention_heads": 24}])
def test_sizes_that_no_engine_config_accepts(model: dict[str, Any]) -> None:
    """transformers' LlamaConfig refuses both before any layer is built: rotary embeddings need an
    even head size (4000 / 32 = 125), and the heads must divide hidden_size (4096 / 24)."""
    try:
        answer = ask(None, model=model)
    except CheckpointError:
        return
    assert answer.trace.outcome == "error"
