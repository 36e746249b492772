"""What vLLM 0.33.0 does otherwise for some models: answers of its own code (oracle)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA
from quantplan.tables.errors import NotKnownError

from quantplan import Explanation, explain


def refusal(answer: Explanation) -> str | None:
    return answer.trace.error.message if answer.trace.error else None


# Quark's MXFP8 experts.

MX: dict[str, Any] = {"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 32, "ch_axis": -1,
                      "scale_format": "e8m0", "is_dynamic": False, "symmetric": None}
BLOCKS: dict[str, Any] = {
    "dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [32, 32], "is_dynamic": False,
    "symmetric": True, "scale_type": "float8_e8m0fnu", "ch_axis": -1}
MOE = {**LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
       "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 16, "head_dim": 128,
       "num_experts_per_tok": 4, "decoder_sparse_step": 1, "mlp_only_layers": [],
       "norm_topk_prob": True}
FP8_KEY = "QuantKey(f8e4m3fn,scale({},per_tensor),symmetric)"


def quark_experts(
    version: str, weight: dict[str, Any], inputs: dict[str, Any] | None, **options: Any
) -> Explanation:
    quark = {"quant_method": "quark", "export": {"kv_cache_group": [], "pack_method": "reorder"},
             "exclude": ["lm_head", "re:.*self_attn.*", "re:.*gate$"], "layer_quant_config": {},
             "layer_type_quant_config": {},
             "global_quant_config": {"weight": weight, "input_tensors": inputs,
                                     "output_tensors": None, "bias": None}}
    return explain({**MOE, "quantization_config": quark}, engine_version=version,
                   **{"capability": "9.0", "libs": {"quark": True}} | options)


def test_0_33_serves_mxfp8_experts_of_quark() -> None:
    answer = quark_experts("0.33.0", MX, {**MX, "is_dynamic": True})
    layer = next(x for x in answer.trace.layers if x.path.endswith("experts"))
    assert (layer.method, layer.kernel) == ("QuarkW8A8Mxfp8MoEMethod", "HummingIndexedExperts")
    assert "MXFP8 experts are not supported through the MoE path" in str(
        refusal(quark_experts("0.32.0", MX, {**MX, "is_dynamic": True})))


@pytest.mark.parametrize("weight, inputs, says", [
    (MX, None, "Unsupported activation quant key: None"),
    (MX, {**MX, "dtype": "fp4", "is_dynamic": True}, "Unsupported activation quant key: QuantKey("
     "u8,scale(u8,dynamic,GroupShape(row=1, col=32)),symmetric)"),
    (MX, {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": True, "symmetric": True},
     "Unsupported activation quant key: " + FP8_KEY.format("f32,dynamic")),
    (MX, {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True},
     "Unsupported activation quant key: " + FP8_KEY.format("f32,static")),
    ({**MX, "dtype": "fp4"}, {**MX, "is_dynamic": True}, "Unsupported activation quant key: "
     "QuantKey(f8e4m3fn,scale(u8,dynamic,GroupShape(row=1, col=32)),symmetric)"),
    ({**MX, "dtype": "fp6_e3m2"}, {**MX, "dtype": "fp4", "is_dynamic": True},
     "Unsupported OCP MX dtype combination for MoE: input_dtype=mxfp4, weight_dtype=mxfp6_e3m2. "
     "Supported MoE weight dtypes are mxfp4, mxfp6_e3m2, and mxfp6_e2m3."),
    (BLOCKS, {**MX, "is_dynamic": True},
     "Quark MXFP8 MoE experts support only the 1-D per_group (group_size=32, e8m0) weight "
     f"spelling, got {BLOCKS} for model.layers.0.mlp.experts"),
])
def test_0_33_refuses_other_experts_of_quark(
    weight: dict[str, Any], inputs: dict[str, Any] | None, says: str
) -> None:
    assert refusal(quark_experts("0.33.0", weight, inputs)) == says


def test_0_33_asks_quark_experts_for_whole_groups_of_32() -> None:
    answer = quark_experts("0.33.0", MX, {**MX, "is_dynamic": True}, tp=16, moe_backend="marlin")
    assert refusal(answer) == (
        "Quark MXFP8 MoE requires hidden_size and intermediate_size_per_partition divisible by 32, "
        "got 2048 and 48.")


# A fused qkv_proj in blocks.


@pytest.mark.parametrize("version, tp, layout, known", [
    ("0.33.0", 1, "fused_qkv", False), ("0.33.0", 2, "fused_qkv", False),
    ("0.33.0", 4, "fused_qkv", True), ("0.33.0", 2, None, True), ("0.32.0", 2, "fused_qkv", True),
])
def test_0_33_keeps_the_blocks_of_a_fused_qkv_in_chunks(
    version: str, tp: int, layout: str | None, known: bool
) -> None:
    config = {
        **LLAMA, "architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash",
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
        "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192,
        "swa_v_head_dim": 128, "hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 0],
        "sliding_window": 128, "attention_projection_layout": layout,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
                                "weight_block_size": [128, 128]}}
    try:
        explain(config, engine_version=version, capability="9.0", tp=tp)
        answered = True
    except NotKnownError as error:
        answered = "fused qkv_proj" not in str(error)
    assert answered is known
