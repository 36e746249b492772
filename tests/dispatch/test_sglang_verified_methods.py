"""What `quantplan verify --engine sglang` found of methods and flags: answers of SGLang 0.5.23 to
generated cases."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain
from quantplan.oracle.grid_models import grid_models

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
PACKED = {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"}
MXFP8 = {"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]}
NOT_MIXED = str(("For Fused MoE layers, only ", "pack-quantized ",
                 "is supported for the following bits: ", "[4, 8]"))
FP8_OF_CHANNELS = {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}


def ask(model: str, capability: int = 90, quant: Any = None, **options: Any) -> dict[str, Any]:
    config = {**grid_models("sglang")[model][0], "quantization_config": quant}
    return explain(config, engine="sglang", engine_version="0.5.23", capability=capability,
                   **options).to_dict()


@pytest.mark.parametrize("capability, backend, message", [
    (90, "auto", NOT_MIXED),
    (100, "flashinfer_trtllm", "For Fused MoE layers, only pack-quantized is supported for the "
                               "mxint4"),
])
def test_experts_go_by_the_format_of_the_whole_checkpoint(
    capability: int, backend: str, message: str
) -> None:
    quant = {"quant_method": "compressed-tensors", "format": "mixed-precision",
             "config_groups": {"group_0": PACKED}, "ignore": ["lm_head", "re:.*mlp.gate$"]}
    error = ask("Qwen3MoeForCausalLM", capability, quant, moe_backend=backend)["error"]
    assert (error["type"], error["message"]) == ("ValueError", message)


def test_online_mxfp4_leaves_most_of_qwen3_5_moe_alone() -> None:
    error = ask("Qwen3_5MoeForConditionalGeneration", 110, quantization="quark_mxfp4")["error"]
    assert (error["type"], error["message"], error["layer"]) == (
        "NotImplementedError", "Online MXFP4 quantization for MoE layers requires an AMD ROCm "
        "device with FP4 hardware support (gfx95x, e.g. MI355x).",
        "model.language_model.layers.0.mlp.experts")


@pytest.mark.parametrize("model, path", [
    ("KimiK25ForConditionalGeneration", "language_model.model.layers.1.mlp.experts"),
    ("Qwen3_5MoeForConditionalGeneration", "model.layers.0.mlp.experts"),
])
def test_what_fails_after_loading_is_named_as_the_model_has_it(model: str, path: str) -> None:
    error = ask(model, 120, MXFP8)["error"]
    assert (error["type"], error["layer"]) == ("RuntimeError", path)


def test_mistral_large_3_is_served_in_bfloat16_whatever_was_asked() -> None:
    """arg_groups/model_override_base.py:MODEL_OVERRIDES."""
    found = ask("MistralLarge3ForCausalLM", 110, dtype="float16")
    assert found["deployment"]["dtype"] == "bfloat16"


@pytest.mark.parametrize("model", ["MistralLarge3ForCausalLM", "KimiK25ForConditionalGeneration"])
def test_embeddings_of_latent_attention_models_ask_no_method(model: str) -> None:
    """models/deepseek_v2.py:DeepseekV2Model builds its embedding without the config."""
    assert ask(model, 100, {"quant_method": "mxfp4"})["error"]["type"] == "AssertionError"


def test_nemotron_h_names_the_method_of_an_algorithm_that_none_serves() -> None:
    error = ask("NemotronHForCausalLM", 90, FP8_OF_CHANNELS)["error"]
    assert (error["type"], error["message"][:62]) == (
        "ValueError", "ModelOptFp8Config only supports regular FP8 quantization, but ")


def test_gpt_oss_without_flashinfer_is_not_known() -> None:
    with pytest.raises(NotKnownError, match="experts_mxfp4"):
        ask("GptOssForCausalLM", 103, {"quant_method": "mxfp4"}, libs={"flashinfer": False})


def test_dbrx_with_a_tied_head_is_refused_by_its_config_class() -> None:
    config = {**grid_models("sglang")["DbrxForCausalLM"][0], "tie_word_embeddings": True}
    error = explain(config, engine="sglang", capability=100).to_dict()["error"]
    assert (error["type"], error["message"]) == (
        "StrictDataclassClassValidationError", "Class validation error for validator "
        "'validate_architecture':\n    ValueError: tie_word_embeddings is not supported for DBRX "
        "models.")


def test_fp8_products_of_torch_take_whole_pieces_of_16_inputs() -> None:
    config = {**grid_models("sglang")["MistralForCausalLM"][0], "intermediate_size": 1000,
              "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    found = explain(config, engine="sglang", engine_version="0.5.23", capability=120).to_dict()
    told = next(f for f in found["findings"] if f["id"] == "kernel-cannot-run")
    assert told["message"] == (
        "torch._scaled_mm is selected for model.layers.0.mlp.down_proj, but its first forward "
        "fails: Expected trailing dimension of mat1 to be divisible by 16")


@pytest.mark.parametrize("model, dtype", [
    ("Starcoder2ForCausalLM", "bfloat16"), ("OlmoForCausalLM", "bfloat16"),
    ("LlamaForCausalLM", "float8_e4m3fn"),
])
def test_the_cache_follows_the_config_of_a_class_that_keeps_it(model: str, dtype: str) -> None:
    """mem_cache/kv_cache_dtype.py:configure_kv_cache_dtype asks the model for its quant_config."""
    quant = {"quant_method": "modelopt", "quant_algo": "FP8",
             "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}
    assert ask(model, 90, quant)["kv_cache"]["resolved"] == dtype


def test_shared_experts_that_the_config_does_not_count() -> None:
    config = {key: value for key, value in grid_models("sglang")["Glm4MoeForCausalLM"][0].items()
              if key != "n_shared_experts"}
    assert explain(config, engine="sglang", capability=90).to_dict()["outcome"] == "ok"
