"""Routed experts on one rank, against what the engine allocates for them."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.gpu import capability_gpu
from quantplan.dispatch.resolve import resolve
from quantplan.planner.experts import Alignment, Spread, alignment, in_groups, placed, spread_of
from quantplan.planner.weights import weigh
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import UsageError

GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 4, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_local_experts": 32,
    "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}
"""openai/gpt-oss-20b, cut to four layers."""

QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "num_experts": 128, "num_experts_per_tok": 8, "tie_word_embeddings": False}
"""Qwen/Qwen3-30B-A3B: 30,532,122,624 parameters."""


def bytes_of(config: dict[str, Any], capability: str = "9.0", **options: Any) -> int:
    """Return the bytes of one rank's weights."""
    checkpoint, deployment = Checkpoint("", "test", config), Deployment(**options)
    trace = resolve(checkpoint, load_engine("vllm", "0.32.0"), capability_gpu(capability),
                    deployment)
    structure = placed(model_structure(checkpoint, weighed=True), deployment, trace, config)
    return weigh(checkpoint, structure, tp=deployment.tp, dtype="bfloat16").bytes


@pytest.mark.parametrize(("capability", "options", "wanted"), [
    ("9.0", {}, 4_223_993_728), ("9.0", {"tp": 2}, 2_131_588_736),
    ("9.0", {"moe_backend": "marlin"}, 4_376_987_520), ("8.0", {}, 4_376_987_520),
    ("8.0", {"tp": 2}, 2_229_433_984)])
def test_gpt_oss_by_backend(capability: str, options: dict[str, Any], wanted: int) -> None:
    """vLLM 0.32.0's model with meta tensors: Triton keeps the sizes, Marlin pads them."""
    assert bytes_of(GPT_OSS, capability, **options) == wanted


def test_whole_experts_and_cut_ones_weigh_the_same() -> None:
    """Two ranks hold 64 whole experts, or half of each of 128."""
    whole = bytes_of(QWEN3_MOE, tp=2, expert_parallel=True)
    assert whole == bytes_of(QWEN3_MOE, tp=2)
    assert bytes_of(QWEN3_MOE) == 2 * 30_532_122_624


def test_marlin_wants_whole_groups() -> None:
    """marlin_utils.py:marlin_moe_padded_intermediate: lcm(64, group)."""
    assert alignment("int_wna16", "MARLIN") == Alignment(64, 1, whole_groups=True)
    assert alignment("fp8", "TRITON") == Alignment()
    grouped = in_groups(Spread(alignment=alignment("int_wna16", "MARLIN")), 128).alignment
    assert grouped.of(2048, gated=True) == 128
    assert spread_of(Deployment(tp=4), None) == Spread(4, 1)


@pytest.mark.parametrize(("backend", "hidden", "gated", "wanted"), [
    ("MARLIN", 2048, True, 64), ("MARLIN", 2880, True, 128), ("FLASHINFER_TRTLLM", 2048, True, 64),
    ("FLASHINFER_TRTLLM", 2048, False, 128), ("FLASHINFER_CUTLASS", 2048, True, 1),
    ("FLASHINFER_CUTLASS", 2688, False, 128)])
def test_nvfp4_experts_are_padded_by_backend(
    backend: str, hidden: int, gated: bool, wanted: int
) -> None:
    """vLLM 0.32.0 marlin_utils_fp4.py:prepare_nvfp4_moe_layer_for_marlin and
    flashinfer_fp4_moe.py:prepare_nvfp4_moe_layer_for_fi_or_cutlass."""
    assert alignment("nvfp4", backend).of(hidden, gated) == wanted


def test_experts_that_do_not_divide() -> None:
    with pytest.raises(UsageError, match="does not divide over 5 ranks"):
        weigh(Checkpoint("", "test", QWEN3_MOE),
              model_structure(Checkpoint("", "test", QWEN3_MOE), weighed=True), tp=5)
