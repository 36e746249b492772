"""What `quantplan verify --engine sglang` found class by class: SGLang's own answers."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from quantplan import explain
from quantplan.oracle.grid_models import grid_models, text_part


def asked(
    architecture: str, fields: dict[str, Any] | None = None, quant: dict[str, Any] | None = None,
    capability: int = 90, **options: Any,
) -> dict[str, Any]:
    config = deepcopy(dict(grid_models("sglang")[architecture][-1]))
    text = text_part(config)
    for part in (config, text):
        part.pop("quantization_config", None)
    text.update(fields or {})
    if quant is not None:
        config["quantization_config"] = quant
    return explain(config, engine="sglang", engine_version="0.5.22", capability=capability,
                   **options).to_dict()


def ended(found: dict[str, Any]) -> tuple[str, str]:
    return found["error"]["type"], found["error"]["message"]


def row(found: dict[str, Any], path: str) -> dict[str, Any]:
    return next(layer for layer in found["layers"] if layer["path"] == path)


PLAIN = [
    "DeepseekV4ForCausalLM", "ChatGLMModel", "CohereForCausalLM", "Cohere2ForCausalLM",
    "GemmaForCausalLM", "GPT2LMHeadModel", "GPTJForCausalLM", "GraniteForCausalLM",
    "HunYuanDenseV1ForCausalLM", "LagunaForCausalLM", "MiniCPM3ForCausalLM", "Olmo2ForCausalLM",
    "OPTForCausalLM", "StableLmForCausalLM"]
"""Classes that tell their embedding nothing of the quantization."""


@pytest.mark.parametrize("architecture", PLAIN)
def test_gguf_leaves_an_embedding_alone_that_its_class_builds_plain(architecture: str) -> None:
    layers = asked(architecture, quant={"quant_method": "gguf"})["layers"]
    assert layers[0]["method"] == "UnquantizedEmbeddingMethod"


@pytest.mark.parametrize("architecture", PLAIN)
def test_mxfp4_ends_there_at_the_first_dense_layer(architecture: str) -> None:
    found = asked(architecture, quant={"quant_method": "mxfp4"}, capability=100)
    assert ended(found) == ("AssertionError", "")


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "OlmoForCausalLM"])
def test_mxfp4_ends_at_an_embedding_or_at_attention(architecture: str) -> None:
    """models/olmo.py:OlmoAttention tells its attention of the quantization, and no layer before."""
    found = asked(architecture, quant={"quant_method": "mxfp4"}, capability=100)
    assert ended(found) == ("NotImplementedError", "Mxfp4 attention layer is not implemented")


@pytest.mark.parametrize("architecture, path, n", [
    ("PhiForCausalLM", "model.layers.*.self_attn.qkv_proj", 6144),
    ("Starcoder2ForCausalLM", "model.layers.*.self_attn.qkv_proj", 4096)])
def test_phi_and_starcoder2_read_no_head_dim(architecture: str, path: str, n: int) -> None:
    """models/phi.py:PhiAttention, models/starcoder2.py:Starcoder2Attention."""
    assert row(asked(architecture, {"head_dim": 64}), path)["n"] == n


NO_INT = ("StrictDataclassFieldValidationError",
          "Validation error for field 'sliding_window':\n    TypeError: Field 'sliding_window' "
          "expected int, got NoneType (value: None)")
NO_DIFFERENCE = ("TypeError", "unsupported operand type(s) for -: 'NoneType' and 'int'")


@pytest.mark.parametrize("architecture, error", [
    ("DeepseekV4ForCausalLM", NO_INT), ("MiMoV2FlashForCausalLM", NO_INT),
    ("ExaoneMoeForCausalLM", NO_INT), ("LagunaForCausalLM", NO_INT),
    ("GptOssForCausalLM", NO_DIFFERENCE), ("Gemma2ForCausalLM", NO_DIFFERENCE),
    ("Gemma3ForCausalLM", NO_DIFFERENCE), ("Gemma3ForConditionalGeneration", NO_DIFFERENCE),
    ("GraniteSWAForCausalLM", NO_DIFFERENCE)])
def test_a_sliding_window_of_null_ends_the_start(
    architecture: str, error: tuple[str, str]
) -> None:
    assert ended(asked(architecture, {"sliding_window": None})) == error


@pytest.mark.parametrize("architecture", ["MistralForCausalLM", "Qwen2ForCausalLM"])
def test_other_classes_take_null_for_no_window(architecture: str) -> None:
    assert asked(architecture, {"sliding_window": None})["error"] is None


def test_deepseek_v4_needs_a_sliding_window() -> None:
    config = deepcopy(dict(grid_models("sglang")["DeepseekV4ForCausalLM"][-1]))
    del config["sliding_window"]
    found = explain(config, engine="sglang", engine_version="0.5.22", capability=90).to_dict()
    assert ended(found) == (
        "AttributeError", "'_DeepseekV4ConfigAlias' object has no attribute 'sliding_window'")


@pytest.mark.parametrize("architecture, message", [
    ("GPTJForCausalLM", "16 is not divisible by 3"), ("MiniCPM3ForCausalLM", "")])
def test_heads_that_three_ranks_do_not_divide(architecture: str, message: str) -> None:
    """models/gpt_j.py:GPTJAttention builds its layers first, models/minicpm3.py:MiniCPM3Attention
    asserts first."""
    assert ended(asked(architecture, tp=3)) == ("AssertionError", message)


@pytest.mark.parametrize("architecture, dtype", [
    ("LagunaForCausalLM", "bfloat16"), ("LightOnOCRForConditionalGeneration", "bfloat16"),
    ("LlamaForCausalLM", "float8_e4m3fn")])
def test_a_model_without_its_config_class_does_not_say_that_its_cache_is_fp8(
    architecture: str, dtype: str
) -> None:
    """mem_cache/kv_cache_dtype.py:configure_kv_cache_dtype asks model.quant_config."""
    quant = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
             "exclude_modules": ["lm_head"]}
    assert asked(architecture, quant=quant)["kv_cache"]["resolved"] == dtype


@pytest.mark.parametrize("architecture", [
    "DeepseekV2ForCausalLM", "KimiK25ForConditionalGeneration"])
def test_shared_experts_of_their_own_under_w8a8_fp8(architecture: str) -> None:
    """models/deepseek_v2.py:DeepseekV2MoE."""
    found = asked(architecture, quant=W8A8, quantization="w8a8_fp8")
    assert ended(found) == (
        "AttributeError", "'W8A8Fp8LinearMethod' object has no attribute 'quant_config'")


W8A8 = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True,
                        "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token",
                                  "symmetric": True, "dynamic": True}}}}
