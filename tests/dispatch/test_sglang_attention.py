"""Attention backends, pages and KV dtypes of SGLang 0.5.22 and 0.5.23: what their own ServerArgs
answered for small models."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError, UsageError

from quantplan import explain

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
         "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_hidden_layers": 2, "vocab_size": 128256,
         "torch_dtype": "bfloat16", "max_position_embeddings": 8192}
E5M2 = {"kv_cache_dtype": "fp8_e5m2"}
NVFP4 = {"kv_cache_dtype": "nvfp4"}


def ask(capability: int, **options: Any) -> Any:
    """Return our trace for a small Llama."""
    return explain(LLAMA, engine="sglang", capability=capability, **options).trace


@pytest.mark.parametrize("capability, options, found", [
    (75, {}, ("flashinfer", None, 1, "float16")),
    (80, {}, ("flashinfer", None, 1, "bfloat16")),
    (80, {"libs": {"flashinfer": False}}, ("triton", None, 1, "bfloat16")),
    (90, {}, ("fa3", None, 1, "bfloat16")),
    (90, E5M2, ("triton", None, 1, "float8_e5m2")),
    (90, {**E5M2, "decode_attention_backend": "fa3", "attention_backend": "fa3"},
     ("fa3", "triton", 1, "float8_e5m2")),
    (100, {}, ("trtllm_mha", None, 64, "bfloat16")),
    (100, {"page_size": 32}, ("trtllm_mha", None, 32, "bfloat16")),
    (100, {"attention_backend": "fa4", "page_size": 32}, ("fa4", None, 128, "bfloat16")),
    (100, {"attention_backend": "triton"}, ("triton", None, 1, "bfloat16")),
    (100, NVFP4, ("trtllm_mha", None, 64, "float4_e2m1fn_x2")),
    (120, NVFP4, ("trtllm_mha", "flashinfer", 64, "float4_e2m1fn_x2")),
    (100, {"kv_cache_dtype": "mxfp8"}, ("trtllm_mha", None, 64, "float8_e4m3fn")),
    (120, {"attention_backend": "compressed"}, ("dsv4", None, 1, "bfloat16")),
])
def test_backend_page_and_dtype(
    capability: int, options: dict[str, Any], found: tuple[str, str | None, int, str]
) -> None:
    trace = ask(capability, **options)
    layer = next(x for x in trace.layers if x.module == "RadixAttention")
    assert layer.kv_cache_dtype == trace.kv_cache["resolved"]
    assert (layer.attn_backend, layer.prefill_backend, trace.kv_cache["page_size"],
            layer.kv_cache_dtype) == found


@pytest.mark.parametrize("capability, options, kind, message", [
    (80, NVFP4, "ValueError", "TRTLLM MHA backend for decode is only supported on Hopper (SM90), "
     "Blackwell (SM100) and (SM120) GPUs. Please use a different decode backend."),
    (90, NVFP4, "RuntimeError", "--kv-cache-dtype=nvfp4 requires Blackwell SM100 or SM120. Use "
     "--kv-cache-dtype=fp4_mx_block16 for the block-size-16 FP4 recipe."),
    (90, {"kv_cache_dtype": "fp4_mx_block16"}, "AssertionError", "KV4 MHA expects "
     "attention_backend to be one of ['triton', 'torch_native', 'flex_attention', 'trtllm_mha'], "
     "but got fa3"),
    (90, {"attention_backend": "trtllm_mla"}, "ValueError", "TRTLLM MLA backend is only supported "
     "on Blackwell GPUs (SM100/SM12x). Please use a different backend."),
    (90, {"kv_cache_dtype": "mxfp8"}, "ValueError", "--kv-cache-dtype mxfp8 requires an SM100+ "
     "(Blackwell) GPU for the block-scaled operands used by the FA4 MXFP8 attention path."),
])
def test_what_the_server_refuses(
    capability: int, options: dict[str, Any], kind: str, message: str
) -> None:
    error = ask(capability, **options).error
    assert error is not None
    assert (error.stage, error.type, error.message) == ("flags", kind, message)


def test_candidates_say_why() -> None:
    layer = next(x for x in ask(89).layers if x.module == "RadixAttention")
    assert layer.selection is not None
    assert [(one.kernel, one.decisive and one.decisive.text) for one in layer.selection.candidates
            if one.considered] == [
        ("fa3", "gpu.family is 8.x; must be 9.x"), ("fa4", "gpu.family is 8.x; must be 10.x"),
        ("trtllm_mha", "gpu.family is 8.x; must be 10.x"), ("flashinfer", None)]


def test_what_is_rewritten_has_its_reason() -> None:
    layer = next(x for x in ask(90, **E5M2).layers if x.module == "RadixAttention")
    assert layer.selection is not None
    assert [(step.kind, step.what, step.because) for step in layer.selection.steps] == [
        ("Overridden", "attention backend triton", "fa3 has fp8_e4m3 only"),
        ("Overridden", "page size 1", "the default")]


def test_a_library_that_is_not_known_makes_it_conditional() -> None:
    trace = ask(89, libs={"flashinfer": None})
    layer = next(x for x in trace.layers if x.module == "RadixAttention")
    assert layer.selection is not None
    assert trace.outcome == "conditional"
    assert [one.kernel for one in layer.selection.alternatives] == ["flashinfer"]


@pytest.mark.parametrize("options, error, words", [
    ({"attention_backend": "FLASH_ATTN"}, UsageError, "--attention-backend FLASH_ATTN"),
    ({"mm_attention_backend": "fa5"}, UsageError, "--mm-attention-backend fa5"),
    ({"kv_cache_dtype": "int8"}, UsageError, "--kv-cache-dtype int8"),
    ({"page_size": 48}, NotKnownError, "divides 2048"),
])
def test_flags_that_are_not_answered(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ask(90, **options)


E4M3 = {"kv_cache_dtype": "fp8_e4m3"}


@pytest.mark.parametrize("capability, options, found", [
    (75, E4M3, {"kv-fp8-flashinfer", "kv-unscaled"}),
    (80, E4M3, {"kv-fp8-flashinfer", "kv-unscaled"}),
    (89, E4M3, {"kv-unscaled"}),
    (80, {**E4M3, "attention_backend": "triton"}, {"kv-fp8-triton", "kv-unscaled"}),
    (89, {**E4M3, "attention_backend": "triton"}, {"kv-unscaled"}),
    (75, {**E5M2, "attention_backend": "triton"}, {"kv-e5m2-triton-75", "kv-unscaled"}),
    (86, {**E5M2, "attention_backend": "triton"}, {"kv-e5m2-triton", "kv-unscaled"}),
    (80, {**E4M3, "attention_backend": "fa3"}, {"kv-fp8-not-known", "kv-unscaled"}),
    (75, {"attention_backend": "fa3"}, {"fa3-gpu"}),
    (80, {"attention_backend": "fa3"}, set()),
    (100, {"attention_backend": "trtllm_mla"}, {"latent-backend"}),
    (100, {"kv_cache_dtype": "mxfp8"}, {"kv-mxfp8"}),
    (100, {"kv_cache_dtype": "mxfp8", "attention_backend": "fa4"}, set()),
    (90, {"attention_backend": "nsa"}, {"dsa-backend"}),
    (90, {"attention_backend": "aiter"}, {"other-devices-backend"}),
])
def test_what_comes_of_it_later(
    capability: int, options: dict[str, Any], found: set[str]
) -> None:
    """No capability is asked for FP8 caches: Triton's fp8e4nv exists from 8.9 up
    (triton backends/nvidia/compiler.py), its fp8e5 does not assemble for sm_75 (compiled there),
    FlashInfer converts in software (its vec_dtypes.cuh)."""
    trace = ask(capability, **options)
    assert {finding.id for finding in trace.findings} == found
    assert trace.outcome == "ok"


def kept(config: dict[str, Any], capability: int) -> Any:
    """Return our trace for a checkpoint of Llama with that quantization config."""
    return explain({**LLAMA, "quantization_config": config}, engine="sglang",
                   capability=capability).trace


@pytest.mark.parametrize("scheme, dtype, ignored", [
    ("FP8", "float8_e4m3fn", False), ("NVFP4", "bfloat16", True), (None, "bfloat16", False)])
def test_what_the_checkpoint_says_of_the_cache(
    scheme: str | None, dtype: str, ignored: bool
) -> None:
    """auto follows FP8 alone (mem_cache/kv_cache_dtype.py:configure_kv_cache_dtype)."""
    trace = kept({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                  "kv_cache_scheme": scheme, "ignore": []}, 100)
    assert trace.kv_cache["resolved"] == dtype
    assert ("kv-scheme-not-followed" in {f.id for f in trace.findings}) is ignored


@pytest.mark.parametrize("architecture, model_type, method, found", [
    ("LlamaForCausalLM", "llama", "Fp8KVCacheMethod", "kv-default-scales"),
    ("Qwen3ForCausalLM", "qwen3", None, "kv-scales-not-read")])
def test_a_class_that_hands_attention_no_quantization_config(
    architecture: str, model_type: str, method: str | None, found: str
) -> None:
    """models/qwen3.py:Qwen3Attention makes RadixAttention without it: no method, no scales."""
    config = {**LLAMA, "architectures": [architecture], "model_type": model_type, "head_dim": 128,
              "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    trace = explain(config, engine="sglang", capability=90, kv_cache_dtype="fp8_e4m3").trace
    assert {x.method for x in trace.layers if x.module == "RadixAttention"} == {method}
    assert trace.kv_cache["method"] == method
    assert found in {finding.id for finding in trace.findings}


VISION = {"depth": 2, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
          "out_hidden_size": 4096, "patch_size": 16, "spatial_merge_size": 2,
          "temporal_patch_size": 2, "in_channels": 3, "num_position_embeddings": 2304,
          "deepstack_visual_indexes": [0]}
QWEN3_VL = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
            "vision_config": VISION, "text_config": {
                **LLAMA, "model_type": "qwen3_vl_text", "head_dim": 128, "dtype": "bfloat16"}}


@pytest.mark.parametrize("capability, asked, encoder, decode, prefill", [
    (80, None, "triton_attn", "flashinfer", None), (90, None, "fa3", "flashinfer", "fa3"),
    (100, None, "fa4", "trtllm_mha", None), (120, None, "triton_attn", "flashinfer", None),
    (100, "sdpa", "sdpa", "trtllm_mha", None)])
def test_the_encoder_has_a_backend_of_its_own(
    capability: int, asked: str | None, encoder: str, decode: str, prefill: str | None
) -> None:
    """layers/attention/vision.py:VisionAttention; on 9.x Qwen3-VL decodes with FlashInfer."""
    layers = explain(QWEN3_VL, engine="sglang", capability=capability,
                     mm_attention_backend=asked).trace.layers
    assert {(x.module, x.attn_backend, x.prefill_backend) for x in layers if x.attn_backend} == {
        ("VisionAttention", encoder, None), ("RadixAttention", decode, prefill)}


def test_an_encoder_backend_that_blackwell_has_not() -> None:
    error = explain(QWEN3_VL, engine="sglang", capability=100,
                    mm_attention_backend="fa3").trace.error
    assert error is not None
    assert (error.type, error.message, error.layer) == (
        "ValueError", "The 'fa3' backend is not supported on Blackwell GPUs",
        "visual.blocks.0.attn")
