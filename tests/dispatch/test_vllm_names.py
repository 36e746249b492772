"""What a method is called in the end in vLLM 0.32.0 (config/model.py:ModelConfig.
_verify_quantization), and what its config class then needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, golden_rows, message, quantization
from quantplan.dispatch.trace import Method, Step
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import CheckpointError

from quantplan import Explanation

METHODS = load_engine("vllm", "0.32.0")["methods"]
LISTED = "[" + ", ".join(repr(name) for name in METHODS) + "]"
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def resolved(quant: Any, **options: Any) -> str | None:
    """Return the method's final name of a question that the engine answers."""
    answer = ask(quant, **options)
    assert answer.trace.error is None
    return answer.trace.method.resolved


def refused(answer: Explanation) -> tuple[str, str, str]:
    error = answer.trace.error
    assert error is not None
    return error.stage, error.type, error.message


# The registry.


def test_the_registry_is_the_engine_s() -> None:
    """quantization/__init__.py:QuantizationMethods, as the rows llama8b/unknown list it."""
    row = next(row for name, row in golden_rows().items() if name.startswith("llama8b/unknown/"))
    assert row["expect"]["error"]["message"] == (
        f"Unknown quantization method: made_up_quant. Must be one of {LISTED}.")


@pytest.mark.parametrize("name", ["hqq", "aqlm", "made_up_quant", "bitsandbytes", "gguf", "bitnet"])
def test_an_unknown_method_lists_those_that_are(name: str) -> None:
    """Rows llama8b/{hqq,aqlm,unknown,bnb-nf4}."""
    answer = ask({"quant_method": name})
    assert refused(answer) == ("method name", "ValidationError", "Unknown quantization method: "
                               f"{name}. Must be one of {LISTED}.")


@pytest.mark.parametrize("name, word", [("bitsandbytes", "plug-in"), ("gguf", "plug-in"),
                                        ("marlin", "drop --quantization")])
def test_a_method_that_moved_out_has_a_way_on(name: str, word: str) -> None:
    error = ask({"quant_method": name}).trace.error
    assert error is not None
    assert error.hint is not None
    assert word in error.hint


# The checkpoint's own name.


def test_no_config_is_no_method() -> None:
    answer = ask(None)
    assert answer.trace.method == Method()
    assert {layer.method for layer in answer.trace.layers} == {
        "UnquantizedEmbeddingMethod", "UnquantizedLinearMethod", None}


@pytest.mark.parametrize("name", ["nomethod"])
def test_a_config_without_quant_method_counts_as_none(name: str) -> None:
    """Rows llama8b/nomethod: everything is 16-bit, without any error."""
    answer = ask(name)
    assert answer.trace.method.checkpoint is None
    assert answer.trace.method.resolved is None
    assert answer.trace.outcome == "ok"


@pytest.mark.parametrize("written, name", [
    ("fp8", "fp8"), ("FP8", "fp8"), ("compressed-tensors", "compressed-tensors"),
    ("compressed_tensors", "compressed-tensors"), ("Compressed-Tensors", "compressed-tensors")])
def test_the_name_is_normalised(written: str, name: str) -> None:
    """transformers_utils/model_arch_config_convertor.py:_normalize_quantization_config; the oracle
    answers the same for these spellings."""
    quant = FP8 if name == "fp8" else quantization("ct-fp8-dynamic")
    assert resolved({**quant, "quant_method": written}) == name


def test_a_name_that_is_no_text_is_refused() -> None:
    for value in (1, None, True, ["fp8"], {"name": "fp8"}):
        with pytest.raises(CheckpointError) as raised:
            ask({**FP8, "quant_method": value})
        assert str(raised.value).startswith("quantization_config: quant_method; wanted text; found")


@pytest.mark.parametrize("field", ["quantization_config", "compression_config"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_where_the_config_is_found(field: str, wrapped: bool) -> None:
    """model_arch_config_convertor.py: quantization_config, compression_config, then text_config."""
    text = {**LLAMA, field: FP8}
    model = {**LLAMA, "text_config": text} if wrapped else text
    assert resolved(None, model=model) == "fp8"


def test_the_outer_config_wins() -> None:
    model = {**LLAMA, "quantization_config": FP8, "text_config": {**LLAMA,
                                                                  "quantization_config": AWQ}}
    assert resolved(None, model=model) == "fp8"


# The override chain.


@pytest.mark.parametrize("requested", [None, "gptq", "gptq_marlin", "auto_gptq", "marlin"])
def test_gptq_becomes_auto_gptq(requested: str | None) -> None:
    """auto_gptq.py:AutoGPTQConfig.override_quantization_method."""
    answer = ask("gptq4-g128", quantization=requested)
    method = answer.trace.method
    assert (method.checkpoint, method.requested, method.resolved, method.config_class) == (
        "gptq", requested, "auto_gptq", "AutoGPTQConfig")
    given = requested or "not given"
    assert method.steps == (Step(
        "Overridden", "gptq -> auto_gptq", f"checkpoint says gptq, --quantization is {given}",
        "model_executor/layers/quantization/auto_gptq.py:AutoGPTQConfig."
        "override_quantization_method"),)


@pytest.mark.parametrize("requested", [None, "awq", "awq_marlin", "auto_awq", "marlin"])
def test_awq_becomes_auto_awq(requested: str | None) -> None:
    """auto_awq.py:AutoAWQConfig.override_quantization_method."""
    answer = ask("awq4-g128", quantization=requested)
    method = answer.trace.method
    assert (method.resolved, method.config_class, method.min_capability) == (
        "auto_awq", "AutoAWQConfig", 75)
    assert [step.what for step in method.steps] == ["awq -> auto_awq"]


def test_awq_marlin_forces_nothing() -> None:
    """Row llama8b/awq4-g128/90/quantization=awq_marlin: Machete all the same."""
    asked = ask("awq4-g128", quantization="awq_marlin")
    plain = ask("awq4-g128")
    assert asked.to_dict()["layers"] == plain.to_dict()["layers"]
    assert {layer.kernel for layer in asked.trace.layers if layer.n} == {
        None, "MacheteLinearKernel"}


@pytest.mark.parametrize("name", ["fp8", "compressed-tensors"])
def test_naming_the_checkpoint_s_own_method_changes_nothing(name: str) -> None:
    quant = "fp8-dynamic" if name == "fp8" else "ct-fp8-dynamic"
    asked, plain = ask(quant, quantization=name), ask(quant)
    assert asked.trace.method.steps == plain.trace.method.steps == ()
    assert asked.trace.layers == plain.trace.layers


@pytest.mark.parametrize("written", ["fp8", "FP8", "Fp8"])
def test_the_flag_is_read_in_any_case(written: str) -> None:
    """The engine's own answer: --quantization FP8 is fp8."""
    assert resolved(None, quantization=written) == "fp8"
    assert resolved(FP8, quantization=written) == "fp8"


def test_an_empty_flag_is_none() -> None:
    """The engine's own answer: --quantization "" is not given."""
    assert resolved(None, quantization="") is None
    assert resolved(FP8, quantization="") == "fp8"


# Mismatch.

MISMATCH = ("Quantization method specified in the model config ({}) does not match the "
            "quantization method specified in the `quantization` argument ({}).")


@pytest.mark.parametrize("quant, own, requested", [
    ("fp8-dynamic", "fp8", "awq"), ("awq4-g128", "awq", "fp8"),
    ("awq4-g128", "awq", "compressed-tensors"), ("gptq4-g128", "gptq", "fp8_per_tensor"),
    ("gptq4-g128", "gptq", "bitsandbytes"), ("ct-w4a16", "compressed-tensors", "gptq_marlin"),
    ("fp8-dynamic", "fp8", "marlin"), ("fp8-dynamic", "fp8", "modelopt")])
def test_another_method_than_the_checkpoint_s(quant: str, own: str, requested: str) -> None:
    """Rows llama8b/QUANT/CAPABILITY/quantization=REQUESTED."""
    answer = ask(quant, quantization=requested)
    assert refused(answer) == ("method name", "ValidationError", MISMATCH.format(own, requested))
    assert answer.trace.layers == ()
    assert answer.trace.method.resolved is None


# Deprecated methods.

DEPRECATED = ("('The quantization method %s is deprecated and will be removed in future versions "
              "of vLLM. To bypass, set `--allow-deprecated-quantization`.', '{}')")


def test_a_deprecated_checkpoint_is_refused() -> None:
    """Rows llama8b/fbgemm/CAPABILITY."""
    assert refused(ask("fbgemm")) == ("method name", "ValidationError",
                                      DEPRECATED.format("fbgemm_fp8"))


@pytest.mark.parametrize("name", ["fbgemm_fp8", "fp_quant"])
def test_a_deprecated_flag_is_refused(name: str) -> None:
    assert message(ask(None, quantization=name)) == DEPRECATED.format(name)


def test_allowing_it_reaches_the_next_step() -> None:
    assert resolved("fbgemm", allow_deprecated_quantization=True) == "fbgemm_fp8"


# A method for a checkpoint that has no quantization config.


@pytest.mark.parametrize("requested", ["awq", "gptq_marlin", "modelopt"])
def test_a_method_that_needs_a_config_file(requested: str) -> None:
    """Rows llama8b/none/CAPABILITY/quantization=REQUESTED."""
    assert refused(ask(None, quantization=requested)) == (
        "config fields", "ValidationError", f"Cannot find the config file for {requested}")


@pytest.mark.parametrize("requested, words", [
    ("compressed-tensors", "CompressedTensorsConfig.__init__() missing 3 required positional "
                           "arguments: 'target_scheme_map', 'ignore', and 'quant_format'"),
    ("online", "OnlineQuantizationConfig.__init__() missing 1 required positional argument: "
               "'args'")])
def test_a_bare_type_error(requested: str, words: str) -> None:
    """Rows llama8b/none/CAPABILITY/quantization=REQUESTED: not wrapped by pydantic."""
    assert refused(ask(None, quantization=requested)) == ("config fields", "TypeError", words)


@pytest.mark.parametrize("requested, method", [
    ("fp8", "Fp8PerTensorOnlineLinearMethod"),
    ("fp8_per_tensor", "Fp8PerTensorOnlineLinearMethod"),
    ("fp8_per_block", "Fp8PerBlockOnlineLinearMethod"),
    ("fp8_per_channel", "Fp8PtpcOnlineLinearMethod"),
    ("int8_per_channel_weight_only", "UnquantizedLinearMethod"),
    ("nvfp4_per_token", "UnquantizedLinearMethod")])
def test_online_methods_quantize_a_16_bit_checkpoint(requested: str, method: str) -> None:
    """config/quantization.py:_ONLINE_SHORTHANDS; rows llama8b/none/90/quantization=REQUESTED."""
    answer = ask(None, quantization=requested)
    assert answer.trace.method.resolved == requested
    assert answer.trace.method.config_class == "OnlineQuantizationConfig"
    assert {layer.method for layer in answer.trace.layers if layer.module == "QKVParallelLinear"
            } == {method}


@pytest.mark.parametrize("name", ["fp8_per_tensor", "fp8_per_block", "online"])
def test_an_online_name_as_the_checkpoint_s_own_method(name: str) -> None:
    """online/base.py:OnlineQuantizationConfig.from_config raises NotImplementedError."""
    answer = ask({"quant_method": name})
    assert refused(answer) == (
        "config fields", "NotImplementedError",
        "OnlineQuantizationConfig does not support loading from a checkpoint config. Use "
        "quantization_config or quantization='fp8_per_tensor'/'fp8_per_block' instead.")


def test_a_side_file_stands_for_the_config() -> None:
    """gptq reads quantize_config.json (get_config_filenames)."""
    side = quantization("gptq4-g128")
    answer = ask(None, quantization="gptq", side_files={"quantize_config.json": side})
    assert answer.trace.error is None
    assert answer.trace.method.config_class == "AutoGPTQConfig"
    assert {layer.method for layer in answer.trace.layers if layer.module == "QKVParallelLinear"
            } == {"AutoGPTQLinearMethod"}


def test_two_side_files_are_one_too_many() -> None:
    """weight_utils.py:get_quant_config."""
    side = {"w_bit": 4, "q_group_size": 128, "zero_point": True}
    answer = ask(None, quantization="awq", side_files={"quantize_config.json": side,
                                                       "quant_config.json": side})
    assert refused(answer) == (
        "config fields", "ValidationError", "Found multiple config files for awq: "
        "['llama/quantize_config.json', 'llama/quant_config.json']")
