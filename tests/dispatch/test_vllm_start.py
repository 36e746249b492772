"""What ends start-up before any quantization, in the engine's words (answers of vLLM 0.32.0)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA
from quantplan.tables.errors import NotKnownError

from quantplan import budget, explain

GEMMA2 = {**LLAMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 256}
CUSTOM = ("The repository <model> contains custom code which must be executed to correctly load "
          "the model. You can inspect the repository content at <model> .\n You can inspect the "
          "repository content at https://hf.co/<model>.\nPlease pass the argument "
          "`trust_remote_code=True` to allow custom code to be run.")
NUMERICS = ("The model type 'gemma2' does not support float16. Reason: Numerical instability. "
            "Please use bfloat16 or float32 instead.")


def error(config: dict[str, Any], **options: Any) -> tuple[str, str, str]:
    """Return stage, type and message of the refusal."""
    told = explain(config, capability="9.0", **options).to_dict()["error"]
    return told["stage"], told["type"], told["message"]


def test_code_of_the_repository_is_not_run_unasked() -> None:
    config = {**LLAMA, "model_type": "nemotron-nas",
              "auto_map": {"AutoConfig": "configuration_decilm.DeciLMConfig"}}
    assert error(config) == ("config fields", "ValidationError", CUSTOM)
    assert explain(config, capability="9.0", trust_remote_code=True).trace.outcome == "ok"


def test_trusted_code_that_the_config_does_not_name() -> None:
    """vLLM 0.32.0 with --trust-remote-code refuses such a config as without, unless the code
    registers its config class by itself."""
    config = {**LLAMA, "model_type": "mimo", "architectures": ["MiMoForCausalLM"]}
    assert error(config)[2].startswith("The checkpoint you are trying to load has model type "
                                       "`mimo`")
    answer = explain(config, capability="9.0", trust_remote_code=True).to_dict()
    assert answer["starts"] == "conditional"
    found = answer["findings"]
    assert [row["message"] for row in found if row["id"] == "code-not-named"] == [
        "model type mimo is known to neither the engine nor Transformers 5.19.0, and config.json "
        "names no code for it (auto_map): --trust-remote-code alone does not load it"]


@pytest.mark.parametrize(("changes", "begins"), [
    ({"model_type": "zzz"}, "The checkpoint you are trying to load has model type `zzz` but "
     "Transformers does not recognize this architecture. This could be because of an issue with "),
    ({"model_type": "nemotron-nas", "auto_map": {"AutoModelForCausalLM": "x.Y"}},
     "The checkpoint you are trying to load has model type `nemotron-nas` but Transformers does "),
    ({"model_type": None}, "Unrecognized model in <model>. Should have a `model_type` key in its "
     "config.json."),
    ({"architectures": ["BaichuanForCausalLM"]}, "Model architecture BaichuanForCausalLM was "
     "supported in vLLM until v0.23.0, and is not supported anymore. Please use an older version "
     "of vLLM if you want to use this model architecture."),
])
def test_models_that_the_engine_does_not_know(changes: dict[str, Any], begins: str) -> None:
    assert error({**LLAMA, **changes})[2].startswith(begins)


def test_an_unknown_type_comes_before_a_bad_method_and_a_bad_dtype() -> None:
    config = {**LLAMA, "model_type": "zzz", "quantization_config": {"quant_method": "gguf"}}
    assert "model type `zzz`" in error(config, dtype="float16", tp=3)[2]


def test_float16_is_refused_where_it_overflows() -> None:
    assert error(GEMMA2, dtype="float16") == ("activation dtype", "ValidationError", NUMERICS)
    quantized = {**GEMMA2, "quantization_config": {"quant_method": "gguf"}}
    assert error(quantized, dtype="float16", tp=3)[2] == NUMERICS


@pytest.mark.parametrize(("capability", "dtype"), [("7.5", "float32"), ("8.0", "bfloat16")])
def test_auto_passes_over_a_refused_float16(capability: str, dtype: str) -> None:
    """_resolve_auto_dtype: float32 is what is left below 8.0."""
    assert explain(GEMMA2, capability=capability).trace.dtype == dtype
    stored = {**GEMMA2, "torch_dtype": "float16"}
    assert explain(stored, capability=capability).trace.dtype == dtype


def test_a_refused_dtype_still_has_a_budget() -> None:
    config = {**LLAMA, "model_type": "zzz"}
    refusal = budget(config, gpu_mem="80GiB", capability="9.0", dtype="float16").refusal
    assert refusal is not None
    assert "model type `zzz`" in refusal.message


def test_an_architecture_without_a_class_lists_those_with_one() -> None:
    told = error({**LLAMA, "architectures": ["Step3p7FlashForCausalLM"]})[2]
    assert told.startswith(
        "Model architectures ['Step3p7FlashForCausalLM'] are not supported for now. Supported "
        "architectures: dict_keys(['AfmoeForCausalLM', 'ApertusForCausalLM', 'AXK1ForCausalLM', ")
    assert told.endswith("'TransformersMultiModalForSequenceClassification'])")


@pytest.mark.parametrize("name, near", [
    ("Step3p7FlashForCausalLM", " Did you mean Step3p7ForConditionalGeneration?"),
    ("LlamaForCasualLM", " Did you mean LlamaForCausalLM, LlamaForCausalLMEagle3, "
     "LLaMAForCausalLM, Llama4ForCausalLM?"),
    ("FooBarForCausalLM", "")])
def test_near_architectures_are_named(name: str, near: str) -> None:
    found = explain({**LLAMA, "architectures": [name]}, capability="9.0").trace.error
    assert found is not None
    assert found.hint == f"No class of this version serves it.{near}"


def test_the_first_architecture_with_a_class_is_built() -> None:
    """_normalize_arch is asked for each name in turn."""
    config = {**LLAMA, "architectures": ["NopeForCausalLM", "LlamaForCausalLM"]}
    assert explain(config, capability="9.0").trace.outcome == "ok"


def test_a_class_of_transformers_is_not_known_here() -> None:
    with pytest.raises(NotKnownError, match="HeliumForCausalLM, served by the class of Transf"):
        explain({**LLAMA, "architectures": ["HeliumForCausalLM"]}, capability="9.0")
