"""Activations that SGLang's classes refuse: what 0.5.22 and 0.5.23 answered with `gelu` in place of
each class' own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from quantplan import explain
from quantplan.oracle.grid_models import grid_models, text_part

SILU = "Unsupported activation: gelu. Only silu is supported for now."
REFUSED = {
    **dict.fromkeys([
        "LlamaForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
        "HunYuanDenseV1ForCausalLM", "Glm4MoeForCausalLM", "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM",
        "GlmMoeDsaForCausalLM", "MistralLarge3ForCausalLM", "KimiK25ForConditionalGeneration",
        "Ernie4_5_MoeForCausalLM", "Exaone4ForCausalLM", "FalconH1ForCausalLM",
        "Glm4MoeLiteForCausalLM", "GraniteForCausalLM", "GraniteSWAForCausalLM",
        "GraniteMoeHybridForCausalLM", "GraniteMoeSharedForCausalLM", "HYV3ForCausalLM",
        "LightOnOCRForConditionalGeneration", "MiniCPM3ForCausalLM",
        "PaddleOCRVLForConditionalGeneration", "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration", "Qwen2MoeForCausalLM", "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"], SILU),
    "LagunaForCausalLM": "Unsupported activation: gelu. Only silu is supported.",
    "Qwen3NextForCausalLM": "Unsupported activation: gelu",
    "ApertusForCausalLM": "Unsupported activation: gelu. Only xIELU is supported for now.",
    "ArceeForCausalLM": "Unsupported activation: gelu. Arcee model in SGLang only supports "
                        "'relu2'.",
    **dict.fromkeys(
        ["Gemma3ForCausalLM", "Gemma4ForConditionalGeneration"],
        "Gemma3MLP uses `gelu_pytorch_tanh` as the hidden activation function. Please set "
        "`hidden_activation` to `gelu_pytorch_tanh`.")}
TAKEN = ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "Starcoder2ForCausalLM", "GPT2LMHeadModel"]


def asked(architecture: str, version: str) -> dict[str, Any]:
    config = deepcopy(dict(grid_models("sglang")[architecture][-1]))
    text = text_part(config)
    for part in (config, text):
        part.pop("quantization_config", None)
    named = [name for name in ("hidden_act", "hidden_activation") if name in text]
    text.update(dict.fromkeys(named or ["hidden_act"], "gelu"))
    return explain(config, engine="sglang", engine_version=version, capability=90).to_dict()


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
@pytest.mark.parametrize("architecture", sorted(REFUSED))
def test_a_class_names_the_activations_that_it_takes(architecture: str, version: str) -> None:
    error = asked(architecture, version)["error"]
    assert (error["type"], error["message"]) == ("ValueError", REFUSED[architecture])


@pytest.mark.parametrize("architecture", TAKEN)
def test_other_classes_take_any(architecture: str) -> None:
    assert asked(architecture, "0.5.22")["error"] is None
