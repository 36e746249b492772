"""Attention windows, head sizes and biases of a config as vLLM 0.32.0 reads them. The answers are
those of the engine's own code, run for an emulated GPU on the same config."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, message, quantization, starts
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.tables.errors import CheckpointError, NotKnownError

QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
WINDOW = {"use_sliding_window": True, "sliding_window": 1024}
FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = {**WINDOW, "layer_types": [FULL, SLIDING]}
PER_HEAD = {"num_bits": 8, "type": "float", "strategy": "attn_head", "symmetric": True,
            "dynamic": False}


# Windows of some layers: models/qwen2.py:Qwen2Model.__init__, which qwen3.py inherits.


@pytest.mark.parametrize("model", [QWEN2, QWEN3])
@pytest.mark.parametrize("changes, first", [
    ({**WINDOW, "max_window_layers": 1}, 1), (MIXED, 28), ({**MIXED, "max_window_layers": 3}, 3)])
def test_a_window_of_some_layers_is_refused(
    model: dict[str, Any], changes: dict[str, Any], first: int
) -> None:
    """Qwen2Config.max_window_layers is 28 where the config has none."""
    answer = ask("gptq4-g128", "7.5", model={**model, **changes})
    error = answer.trace.error
    assert error is not None
    assert (error.stage, error.type, error.layer) == ("config fields", "AssertionError", None)
    assert error.message == (
        "Sliding window for some but all layers is not supported. This model uses sliding window "
        f"but `max_window_layers` = {first} is less than `num_hidden_layers` = 2. Please open an "
        "issue to discuss this feature.")
    assert error.source == "model_executor/models/qwen2.py:Qwen2Model.__init__"
    assert starts(answer) == "no"
    assert answer.trace.layers == ()


def test_the_method_is_still_told_beside_that_refusal() -> None:
    """The config class is made before the model: quantization is auto_gptq in the engine's answer
    too."""
    method = ask("gptq4-g128", "7.5", model={**QWEN2, **MIXED}).to_dict()["method"]
    assert (method["resolved"], method["config_class"], method["min_capability"]) == (
        "auto_gptq", "AutoGPTQConfig", 60)


@pytest.mark.parametrize("model", [QWEN2, QWEN3])
@pytest.mark.parametrize("changes", [
    {}, {"use_sliding_window": True}, WINDOW, {"sliding_window": 1024},
    {"sliding_window": 1024, "max_window_layers": 1}, {"sliding_window": 0},
    {**WINDOW, "sliding_window": None, "max_window_layers": 1},
    *({**WINDOW, "max_window_layers": first} for first in (0, 2, 5)),
    {**MIXED, "max_window_layers": 2}, {**WINDOW, "layer_types": [FULL] * 2},
    {**WINDOW, "layer_types": [SLIDING] * 2}])
def test_a_window_of_all_or_no_layers_is_served(
    model: dict[str, Any], changes: dict[str, Any]
) -> None:
    answer = ask(None, "8.0", model={**model, **changes})
    assert answer.trace.error is None
    assert answer.trace.layers[3].attn_backend == "FLASH_ATTN"


@pytest.mark.parametrize("model", [LLAMA, MISTRAL])
def test_llama_and_mistral_mix_windows_freely(model: dict[str, Any]) -> None:
    for changes in (MIXED, {**WINDOW, "max_window_layers": 1}):
        assert ask(None, "8.0", model={**model, **changes}).trace.error is None


# has_sliding_window of AttentionSelectorConfig, told where no backend fits: per-head scales on 8.0.


@pytest.mark.parametrize("model, changes, windowed", [
    (LLAMA, {}, False), (LLAMA, {"sliding_window": 1024}, True), (LLAMA, WINDOW, True),
    (LLAMA, {"sliding_window": None}, False), (LLAMA, {"sliding_window": 0}, False),
    (LLAMA, MIXED, False), (LLAMA, {**WINDOW, "layer_types": [SLIDING] * 2}, True),
    (LLAMA, {"sliding_window": 512, "layer_types": [SLIDING] * 2}, True),
    (LLAMA, {**WINDOW, "layer_types": [FULL] * 2}, False),
    (LLAMA, {**WINDOW, "max_window_layers": 1}, True),
    (MISTRAL, {}, True), (MISTRAL, {"sliding_window": None}, False),
    (MISTRAL, {"sliding_window": 0}, False), (MISTRAL, {"use_sliding_window": True}, True),
    (MISTRAL, MIXED, False),
    *((model, changes, windowed) for model in (QWEN2, QWEN3) for changes, windowed in (
        ({}, False), (WINDOW, False), ({"sliding_window": 1024}, False),
        ({**WINDOW, "max_window_layers": 0}, True), ({**WINDOW, "max_window_layers": 2}, False),
        ({**WINDOW, "max_window_layers": 5}, False),
        ({**WINDOW, "layer_types": [SLIDING] * 2}, True),
        ({**WINDOW, "layer_types": [FULL] * 2}, False),
        ({"sliding_window": 512, "layer_types": [SLIDING] * 2}, False),
        ({**MIXED, "max_window_layers": 2}, False)))])
def test_has_sliding_window(model: dict[str, Any], changes: dict[str, Any], windowed: bool) -> None:
    """MistralConfig.sliding_window is 4096 where the config has none; Qwen's configs drop theirs
    unless use_sliding_window. The first layer's answer: full attention where the types are
    mixed."""
    quant = quantization("ct-fp8-dynamic", kv_cache_scheme=PER_HEAD)
    words = message(ask(quant, "8.0", model={**model, **changes}))
    assert re.findall(r"has_sliding_window=(\w+)", words) == [str(windowed)]


def test_layer_types_that_are_no_list_of_names() -> None:
    for value in ("full_attention", [1], {"0": FULL}):
        with pytest.raises(CheckpointError, match=r"^config\.json: layer_types; wanted a list"):
            ask(None, model={**LLAMA, "layer_types": value})


# Head sizes.


@pytest.mark.parametrize("model", [QWEN2, MISTRAL])
@pytest.mark.parametrize("hidden, head, n", [(4100, 128, 6144), (4160, 130, 6240)])
def test_qwen2_and_mistral_round_the_head_size_down(
    model: dict[str, Any], hidden: int, head: int, n: int
) -> None:
    """32 heads: qkv_proj has (32 + 2 * 8) * head outputs."""
    answer = ask(None, "8.9", model={**model, "hidden_size": hidden})
    qkv = answer.trace.layers[1]
    assert (qkv.path, qkv.n, qkv.k) == ("model.layers.0.self_attn.qkv_proj", n, hidden)
    assert head * 48 == n
    assert answer.trace.layers[3].attn_backend == (
        "FLASH_ATTN" if head % 8 == 0 else "TRITON_ATTN")


def test_qwen2_takes_an_odd_head_size() -> None:
    """Qwen2Config checks no rotary dimension; MistralConfig and LlamaConfig do."""
    answer = ask(None, "8.9", model={**QWEN2, "hidden_size": 4128})
    assert answer.trace.layers[1].n == 48 * 129


@pytest.mark.parametrize("model", [{**LLAMA, "hidden_size": 4100},
                                   {**LLAMA, "hidden_size": 4100, "head_dim": 128}])
def test_llama_wants_whole_heads(model: dict[str, Any]) -> None:
    """LlamaConfig.validate_architecture, whether or not head_dim is given."""
    assert _config_refused(model) == (
        "ValueError: The hidden size (4100) is not a multiple of the number of attention heads "
        "(32).")


@pytest.mark.parametrize("model, text", [
    ({"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": 2880,
      "expand": 2, "num_heads": 128, "head_dim": 64},
     "Inconsistent configuration: hidden_size * expand (5760) must equal num_heads * head_dim "
     "(8192)."),
    ({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 2048,
      "num_attention_heads": 28},
     "The hidden size is not divisible by the number of attention heads! Make sure to update "
     "them!"),
    ({"model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"],
      "hidden_size": 2880, "mamba_expand": 2, "mamba_n_heads": 64, "mamba_d_head": 64},
     "The dimensions for the Mamba head state do not match the model intermediate_size"),
])
def test_config_classes_refuse_sizes(model: dict[str, Any], text: str) -> None:
    """Transformers 5.19.0: validate_architecture of Mamba2Config, GPTNeoXConfig and
    GraniteMoeHybridConfig."""
    assert _config_refused(model) == f"ValueError: {text}"


def _config_refused(model: dict[str, Any]) -> str:
    error = ask(None, "8.9", model=model).trace.error
    assert error is not None and error.type == "StrictDataclassClassValidationError"
    head, text = error.message.split("\n    ")
    assert head == "Class validation error for validator 'validate_architecture':"
    return text


@pytest.mark.parametrize("family", [LLAMA, MISTRAL])
@pytest.mark.parametrize("hidden, head_dim", [(4128, 129), (4192, 131)])
def test_llama_and_mistral_want_even_heads(
    family: dict[str, Any], hidden: int, head_dim: int
) -> None:
    """validate_rope: "RoPE requires an even rotary dimension"."""
    with pytest.raises(CheckpointError) as raised:
        ask(None, "8.9", model={**family, "hidden_size": hidden})
    assert str(raised.value) == ("config.json: head_dim; wanted an even size, for rotary "
                                 f"embeddings; found {head_dim}")


def test_a_window_of_nothing_still_makes_layers_differ() -> None:
    """Qwen2Config builds layer_types from `sliding_window is not None`."""
    model = {**QWEN2, "use_sliding_window": True, "sliding_window": 0, "max_window_layers": 1}
    error = ask(None, "8.0", model=model).trace.error
    assert error is not None
    assert error.message.startswith("Sliding window for some but all layers is not supported.")


def test_llama_s_other_head_sizes_are_served() -> None:
    answer = ask(None, "8.9", model={**LLAMA, "hidden_size": 4160})
    assert answer.trace.layers[1].n == 48 * 130


def test_more_heads_than_features() -> None:
    with pytest.raises(CheckpointError, match=r"wanted at least num_attention_heads \(32\); "
                                              "found 16"):
        ask(None, model={**QWEN2, "hidden_size": 16})


# Biases and flags.


@pytest.mark.parametrize("changes, biased", [
    ({"qkv_bias": True}, {"qkv_proj"}), ({"qkv_bias": False}, set()),
    ({"qkv_bias": True, "attention_bias": True}, {"qkv_proj", "o_proj"}),
    ({"qkv_bias": False, "attention_bias": True}, {"o_proj"}),
    ({"qkv_bias": None, "attention_bias": True}, {"o_proj"})])
def test_qkv_bias_goes_before_attention_bias(changes: dict[str, Any], biased: set[str]) -> None:
    """models/llama.py:LlamaDecoderLayer.__init__: o_proj keeps attention_bias."""
    modules = model_structure(Checkpoint("x", "mapping", {**LLAMA, **changes})).modules
    assert {module.path.split(".")[-1] for module in modules if module.bias} == biased


def test_encoder_attention_is_not_known() -> None:
    with pytest.raises(NotKnownError, match=r"^a model with is_causal false"):
        ask(None, model={**LLAMA, "is_causal": False})
    for value in (True, None):
        assert ask(None, model={**LLAMA, "is_causal": value}).trace.error is None


@pytest.mark.parametrize("field", ["attention_bias", "qkv_bias", "mlp_bias", "is_causal",
                                   "tie_word_embeddings", "use_sliding_window"])
@pytest.mark.parametrize("value, told", [("no", '"no"'), (0, "0"), ([], "a list of 0 values")])
def test_a_flag_is_true_or_false(field: str, value: Any, told: str) -> None:
    """Text counts as true for the engine, whatever it says: it is refused here."""
    with pytest.raises(CheckpointError) as raised:
        ask(None, model={**LLAMA, field: value})
    assert str(raised.value) == (
        f"config.json: {field} is not usable; wanted true or false; found {told}")


@pytest.mark.parametrize("model, n", [
    ({**MISTRAL, "hidden_size": 5120, "num_attention_heads": 40}, 7168),
    ({**QWEN2, "hidden_size": 4096, "num_attention_heads": 32}, 12288),
    ({**LLAMA, "hidden_size": 5120, "num_attention_heads": 40}, 15360)])
def test_kv_heads_that_the_config_does_not_give(model: dict[str, Any], n: int) -> None:
    """transformers 5.19.0: MistralConfig has 8, Qwen2Config 32, LlamaConfig one per query head; the
    engine's qkv_proj of Mistral's has 7168 outputs."""
    model = {name: value for name, value in model.items() if name != "num_key_value_heads"}
    assert ask(None, "9.0", model=model).trace.layers[1].n == n


def test_dual_chunk_attention_is_not_known() -> None:
    with pytest.raises(NotKnownError, match=r"^dual_chunk_attention_config"):
        ask(None, model={**QWEN2, "dual_chunk_attention_config": {"chunk_size": 262144}})


def test_a_text_config_beside_a_text_model() -> None:
    """transformers_utils/config.py:get_hf_text_config; the engine refuses every such config."""
    answer = ask(None, model={**LLAMA, "text_config": {"torch_dtype": "float16"}})
    finding = answer.trace.findings[0]
    assert (finding.id, finding.severity) == ("text-config-of-a-text-model", "error")
    assert answer.to_dict()["starts"] == "no"


# Config classes whose sliding_window counts only with use_sliding_window.

@pytest.mark.parametrize("architecture, model_type, changes, window", [
    ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", {"sliding_window": 32768}, None),
    ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", WINDOW, None),
    ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", {**WINDOW, "max_window_layers": 0}, 1024),
    ("Qwen2VLForConditionalGeneration", "qwen2_vl", {"sliding_window": 32768}, None),
    ("Qwen3MoeForCausalLM", "qwen3_moe", {"use_sliding_window": True}, 4096),
    ("Qwen3MoeForCausalLM", "qwen3_moe", {"sliding_window": 32768}, None),
    ("Qwen2MoeForCausalLM", "qwen2_moe", WINDOW, None),
    ("Qwen2MoeForCausalLM", "qwen2_moe", {**WINDOW, "max_window_layers": 0}, None)])
def test_a_window_for_all_layers_or_none(
    architecture: str, model_type: str, changes: dict[str, Any], window: int | None
) -> None:
    """engine/arg_utils.py:EngineArgs.create_engine_config takes the window of a model all of whose
    layers slide; the layer types are those of transformers 5.19.0."""
    config = {**LLAMA, "architectures": [architecture], "model_type": model_type,
              "moe_intermediate_size": 768, "num_experts": 8, "num_experts_per_tok": 2,
              "shared_expert_intermediate_size": 768, "decoder_sparse_step": 1,
              "vision_config": {"depth": 1, "hidden_size": 1280, "intermediate_size": 3420,
                                "num_heads": 16, "out_hidden_size": 4096, "embed_dim": 1280},
              **changes}
    assert model_structure(Checkpoint("m", "mapping", config)).sliding_window == window
