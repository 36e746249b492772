"""--attention-config and the flags of multimodal encoders (config/attention.py:AttentionConfig,
config/multimodal.py:MultiModalConfig)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.trace import Layer
from quantplan.tables.errors import NotKnownError, UsageError

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from asking import LLAMA, ask, found, only, quantization, scheme
from test_vllm_attention_findings import GLM, configs

VISION = "Qwen3VLForConditionalGeneration"


def backend(**flags: Any) -> str | None:
    """Return the attention backend of Llama on 9.0."""
    return next(layer.attn_backend for layer in ask(None, "9.0", **flags).trace.layers
                if layer.module == "Attention")


def attending(architecture: str, config: dict[str, Any]) -> list[Layer]:
    """Return the attention layers of a model on 9.0."""
    answer = ask(None, "9.0", model=configs()[architecture], attention_config=config)
    return [layer for layer in answer.trace.layers if layer.module == "Attention"]


# What it cannot say.


@pytest.mark.parametrize(("config", "told"), [
    ({"backends": "FLASH_ATTN"}, "--attention-config backends; wanted one of backend, backend_per"),
    ({"flash_attn_version": 5}, "--attention-config flash_attn_version=5; wanted one of 2, 3, 4"),
    ({"flash_attn_version": True}, "--attention-config flash_attn_version=True; wanted one of 2,"),
    ({"use_trtllm_attention": "yes"},
     "--attention-config use_trtllm_attention=yes; wanted one of true, false"),
    ({"indexer_kv_dtype": []}, "--attention-config indexer_kv_dtype=[]; wanted one of auto, bf16,"),
    ({"flex_attn_block_m": "16"},
     "--attention-config flex_attn_block_m=16; wanted a whole number"),
    ({"flex_attn_block_n": True},
     "--attention-config flex_attn_block_n=True; wanted a whole number"),
    ({"backend": 3}, "--attention-config backend=3; wanted a name"),
    ({"mla_prefill_backend": {}}, "--attention-config mla_prefill_backend={}; wanted a name"),
    ({"backend_per_kind": "FLASH_ATTN"}, "wanted a mapping of kinds to backends"),
    ({"backend_per_kind": {"mamba": 1}}, "wanted a mapping of kinds to backends"),
])
def test_what_the_flag_refuses(config: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        ask(None, "9.0", attention_config=config)
    assert told in str(error.value)


@pytest.mark.parametrize("name", ["hisparse_config", "flex_attn_q_block_size"])
def test_what_is_not_in_the_table(name: str) -> None:
    with pytest.raises(NotKnownError, match=name):
        ask(None, "9.0", attention_config={name: 16})


@pytest.mark.parametrize("config", [
    {}, {"backend": None}, {"backend": "auto"}, {"flash_attn_version": None},
    {"use_trtllm_attention": None}, {"use_non_causal": None}, {"indexer_kv_dtype": None},
    {"mla_prefill_backend": None}, {"backend_per_kind": None}, {"flex_attn_block_m": None},
    {"tokenspeed_mla_min_split_kv": 4}, {"backend": "CUTLASS_MSA"}, {"backend": "triton_msa"}])
def test_what_changes_nothing(config: dict[str, Any]) -> None:
    """CUTLASS_MSA and TRITON_MSA choose a decode kernel of one model, no backend."""
    assert backend(attention_config=config) == "FLASH_ATTN"


def test_an_error_of_the_config_comes_before_everything_else() -> None:
    answer = ask(None, "9.0", model={**LLAMA, "model_type": "none_such"},
                 attention_config={"mla_prefill_backend": "nope"})
    error = answer.trace.error
    assert error is not None
    assert (error.type, error.stage) == ("ValidationError", "flags")
    assert error.message.startswith("Unknown MLA prefill backend: 'NOPE'. Valid options are: FLASH")
    assert answer.trace.layers == ()


# Backends by kind of layer.


def test_a_backend_by_kind_comes_before_the_flag() -> None:
    config = {"backend_per_kind": {"full_attention": "triton_attn", "mamba": "FLASH_ATTN"}}
    assert backend(attention_config=config, attention_backend="FLASHINFER") == "TRITON_ATTN"
    selection = attending("LlamaForCausalLM", config)[0].selection
    assert selection is not None
    assert selection.steps[0].because == (
        "--attention-config backend_per_kind full_attention: TRITON_ATTN")


def test_other_kinds_keep_the_flag() -> None:
    config = {"backend_per_kind": {"sliding_window": "TRITON_ATTN"}}
    assert backend(attention_config=config, attention_backend="FLASHINFER") == "FLASHINFER"
    assert backend(attention_config=config) == "FLASH_ATTN"
    chosen = [layer.attn_backend for layer in attending("Gemma3ForCausalLM", config)]
    assert chosen == ["TRITON_ATTN"] * 5 + ["FLASH_ATTN"]


# Indexer caches.


def test_an_indexer_dtype_that_is_refused_later() -> None:
    """v1/attention/backends/mla/indexer.py:dsa_indexer_uses_fp4, when caches are laid out."""
    answer = ask(None, "10.0", model=configs()[GLM], attention_config={"indexer_kv_dtype": "bf16"})
    finding = only(answer, "cache-refused")
    assert (finding.stage, finding.severity) == ("weight loading", "error")
    assert "indexer_kv_dtype='bf16' is not supported by the DeepSeek sparse indexer" in (
        finding.message)
    fp4 = {"attention_config": {"indexer_kv_dtype": "mxfp4"}}
    assert found(ask(None, "10.0", model=configs()[GLM], **fp4), "cache-refused") == []
    assert "requires Blackwell datacenter" in only(
        ask(None, "9.0", model=configs()[GLM], **fp4), "cache-refused").message


# Encoders.


def test_an_encoder_dtype_that_is_none() -> None:
    with pytest.raises(UsageError, match="--mm-encoder-attn-dtype fp4; wanted fp8"):
        ask(None, "9.0", mm_encoder_attn_dtype="fp4")


def test_text_models_do_not_read_the_encoder_flags() -> None:
    assert backend(mm_encoder_attn_backend="NOPE", mm_encoder_attn_dtype="fp8") == "FLASH_ATTN"


def test_the_encoder_flags_are_repeated() -> None:
    view = ask(None, "10.0", model=configs()[VISION], mm_encoder_attn_backend="flashinfer",
               mm_encoder_attn_dtype="fp8").to_dict()
    assert view["deployment"]["mm_encoder_attn_backend"] == "flashinfer"
    assert view["deployment"]["mm_encoder_attn_dtype"] == "fp8"
    assert {row["attn_backend"] for row in view["layers"]
            if row["module"] == "MMEncoderAttention"} == {"FLASHINFER"}


# Gemma 4, whose layers have heads of 256 and 512.

GEMMA4 = "Gemma4ForConditionalGeneration"
KV_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True,
             "dynamic": False}


@pytest.mark.parametrize(("kv", "backends"), [
    ("auto", ["TRITON_ATTN", "TRITON_FLASH_ATTN"]), ("fp8_e4m3", ["TRITON_FLASH_ATTN"])])
def test_an_fp8_cache_counts_for_the_version_only_where_the_flag_asks_for_it(
    kv: str, backends: list[str]
) -> None:
    """models/config.py:Gemma4Config reads the cache dtype of the run before a compressed-tensors
    scheme makes it FP8: version 4 for all layers, which reads FP8 with heads of 512 only. The
    engine's own answers."""
    quant = {**quantization("ct-fp8-dynamic", kv_cache_scheme=KV_SCHEME),
             "ignore": ["lm_head", "re:.*vision.*", "re:.*router.*"]}
    answer = ask(quant, "9.0", model=configs()[GEMMA4], kv_cache_dtype=kv)
    assert sorted({str(layer.attn_backend) for layer in answer.trace.layers
                   if layer.module == "Attention"}) == backends


def test_gemma_4_replaces_its_tower_s_layers_after_the_projector() -> None:
    """gemma4_mm.py:Gemma4ForConditionalGeneration.__init__: the first layer that is refused."""
    weights = {"num_bits": 4, "strategy": "group", "group_size": 128}
    error = ask(scheme("ct-fp8-dynamic", weights=weights), "9.0",
                model=configs()[GEMMA4]).trace.error
    assert error is not None
    assert error.layer == "embed_vision.embedding_projection"
