"""budget() of one deployment: what keeps the engine from starting, and what is not known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import FP8_PARTS, LLAMA, golden_rows, quantization, stored
from known_models import model
from quantplan.dispatch.facts import Note
from quantplan.planner import deployed
from quantplan.planner.budget import Budget, EngineRefusal
from quantplan.tables.errors import EngineRefusalError, NotKnownError, UsageError

from quantplan import budget, reports

SCHEMA = json.loads((Path(str(reports.__file__)).parent / "schema" / "budget.v2.json").read_text())
ENGINE = "vllm 0.32.0"
LLAMA_8B = model("llama-3.1-8b").config
HEADS = ("Total number of attention heads (32) must be divisible by tensor parallel size (3).")


def of(quant: Any = None, gpu_mem: str = "24GiB", **options: Any) -> Budget:
    """Return the budget of Llama cut to two layers, with a golden quantization QUANT."""
    config = quantization(quant) if isinstance(quant, str) else quant
    return budget({**LLAMA, "quantization_config": config} if config else LLAMA, gpu_mem=gpu_mem,
                  **options)


# Refusals that hold on every GPU are told without one.


@pytest.mark.parametrize("quant, stage", [
    ("fp8-block-static", "config fields"), ("gptq4-desc", "config fields")])
@pytest.mark.parametrize("options", [{}, {"capability": "9.0"}])
def test_a_config_that_the_engine_refuses(
    quant: str, stage: str, options: dict[str, str]
) -> None:
    """Rows llama8b/QUANT/90: the engine's own words; what fits is said all the same."""
    found = of(quant, **options)
    assert found.refusal is not None
    assert (found.refusal.engine, found.refusal.stage) == (ENGINE, stage)
    row = golden_rows()[f"llama8b/{quant}/90"]
    assert found.refusal.message == row["expect"]["error"]["message"]
    assert found.fits


@pytest.mark.parametrize("options", [{}, {"capability": "8.9"}, {"gpu": "4090"}])
def test_a_quantization_that_is_no_method(options: dict[str, str]) -> None:
    """config/model.py:ModelConfig._verify_quantization."""
    found = of(None, quantization="garbage", **options)
    assert found.refusal is not None
    assert found.refusal.stage == "method name"
    assert found.refusal.message.startswith("Unknown quantization method: garbage. Must be one of ")
    assert found.weights.bytes == of().weights.bytes


def test_headers_that_the_engine_cannot_load() -> None:
    found = of("fp8-dynamic", tensors=stored(FP8_PARTS, "down_proj"))
    assert found.refusal == EngineRefusal(
        ENGINE, "weight loading", "model.layers.0.mlp.down_proj and 1 more layers are planned as "
        "quantized but stored in 16 bits: loading fails, or the weights are read wrongly",
        "List them in the ignore entries of the quantization config.")
    assert of("fp8-dynamic", tensors=stored(FP8_PARTS)).refusal is None


# Refusals of one GPU are told only with it.


@pytest.mark.parametrize("quant, capability, options, stage", [
    ("awq4-g128", "7.0", {}, "capability gate"),
    ("ct-w8a8-int8", "12.0", {}, "first forward"),
    ("awq4-g128", "7.5", {"dtype": "bfloat16"}, "activation dtype"),
    (None, "7.5", {"kv_cache_dtype": "fp8"}, "kernel selection")])
def test_what_one_gpu_cannot_do(
    quant: str | None, capability: str, options: dict[str, str], stage: str
) -> None:
    found = of(quant, capability=capability, **options)
    assert found.refusal is not None
    assert found.refusal.stage == stage
    assert of(quant, **options).refusal is None
    assert of(quant, capability="9.0", **options).refusal is None


def test_a_refusal_is_one_line() -> None:
    """Row llama8b/awq4-g128/70: the gate's words, with where they come from."""
    found = of("awq4-g128", capability="7.0")
    assert found.refusal is not None
    assert found.refusal.line() == (
        "vllm 0.32.0 does not start (capability gate): The quantization method auto_awq is not "
        "supported for the current GPU. Minimum capability: 75. Current capability: 70.")
    assert EngineRefusal(ENGINE, "x", "two\n  lines\n", None).line() == (
        "vllm 0.32.0 does not start (x): two lines")


@pytest.mark.parametrize("quant, options", [
    (None, {}), ("fp8-block-static", {}), ("awq4-g128", {"capability": "7.0"}),
    ("ct-w8a8-int8", {"capability": "12.0"}), (None, {"quantization": "garbage"})])
def test_the_refusal_in_json_follows_the_schema(
    quant: str | None, options: dict[str, str]
) -> None:
    found = of(quant, **options)
    plain = json.loads(json.dumps(found.to_dict()))
    jsonschema.validate(plain, SCHEMA)
    assert plain["refusal"] == (found.refusal._asdict() if found.refusal else None)
    if found.refusal:
        assert list(plain["refusal"]) == ["engine", "stage", "message", "hint"]


# What cannot be weighed either.


@pytest.mark.parametrize("options", [{}, {"capability": "8.9"}])
def test_heads_that_do_not_divide(options: dict[str, str]) -> None:
    """config/model.py:ModelConfig.verify_with_parallel_config."""
    with pytest.raises(EngineRefusalError) as raised:
        of(tp=3, **options)
    assert raised.value.exit_code == 1
    assert str(raised.value) == (f"vllm 0.32.0 does not start (shapes under TP): {HEADS} Choose a "
                                 "tensor parallel size that divides the heads.")


def test_a_kv_dtype_that_is_no_choice() -> None:
    with pytest.raises(UsageError) as raised:
        of(kv_cache_dtype="int3")
    assert raised.value.exit_code == 2
    assert str(raised.value).startswith("--kv-cache-dtype int3; wanted one of auto, float16, ")


def test_an_online_format_without_weight_bytes() -> None:
    """online_methods has mxfp8; the formats have no row that weighs the same."""
    with pytest.raises(NotKnownError) as raised:
        of(quantization="mxfp8")
    assert str(raised.value) == (
        "the weight bytes of --quantization mxfp8; wanted one of fp8, fp8_per_tensor, "
        "fp8_per_block, fp8_per_channel. `quantplan explain` says what the engine does with it.")


def test_without_any_memory() -> None:
    with pytest.raises(UsageError) as raised:
        budget(LLAMA, capability="8.9")
    assert str(raised.value) == ("the memory of Emulated GPU 8.9 is not known; wanted --gpu-mem, "
                                 "such as 24GiB")


def test_an_engine_answer_that_is_not_known_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap of the tables: the bytes are known all the same."""
    known = of("fp8-dynamic")

    def unknown(*asked: Any) -> None:
        raise NotKnownError("quantization method x", hint="Ask later.")

    monkeypatch.setattr(deployed, "resolve", unknown)
    found = of("fp8-dynamic")
    assert found.refusal is None
    assert found.notes == (Note("engine-not-known", "whether the engine starts is not known: "
                                "quantization method x", "Ask later."),)
    assert found.weights.bytes == known.weights.bytes
    assert known.notes == ()


# One request of the longest length.


def refused(config: dict[str, Any], gpu_mem: str, **options: Any) -> EngineRefusal | None:
    return budget(config, gpu_mem=gpu_mem, **options).refusal


def test_a_context_that_does_not_fit() -> None:
    """v1/core/kv_cache_utils.py:_check_enough_kv_cache_memory; 46,320 tokens fit 24 GiB
    (test_budget.py), one block of them is never used; a token takes 128 KiB."""
    assert refused(LLAMA_8B, "24GiB") == EngineRefusal(
        ENGINE, "KV cache", "To serve at least one request with the model's max seq len (131072), "
        "(16.0 GiB KV cache is needed, which is larger than the available KV cache memory (5.65 "
        "GiB). Based on the available memory, the estimated maximum model length is 46304.",
        "Pass --max-model-len 46304 or less, or auto.")


@pytest.mark.parametrize("changes, gpu_mem", [
    ({}, "48GiB"), ({"max_position_embeddings": 32768}, "24GiB"),
    ({"max_position_embeddings": 46464}, "24GiB"), ({"sliding_window": 4096}, "24GiB"),
    ({}, "14GiB")])
def test_a_context_that_fits_or_is_not_known_to_fail(
    changes: dict[str, Any], gpu_mem: str
) -> None:
    """A window needs fewer tokens than the context; what a GPU has no room for at all ends before
    there is a KV cache."""
    assert refused({**LLAMA_8B, **changes}, gpu_mem) is None


def test_a_share_without_room_for_a_block() -> None:
    found = refused(LLAMA_8B, "24GiB", gpu_memory_utilization=0.65)
    assert found == EngineRefusal(ENGINE, "KV cache",
                                  "No available memory for the cache blocks.", None)
    auto = refused(LLAMA_8B, "24GiB", gpu_memory_utilization=0.65, max_model_len="auto")
    assert auto is not None
    assert auto.message.startswith("Cannot auto-fit max_model_len: not enough GPU memory")


def test_auto_takes_the_longest_request_that_fits() -> None:
    """v1/core/kv_cache_utils.py:_auto_fit_max_model_len."""
    found = budget(LLAMA_8B, gpu_mem="24GiB", max_model_len="auto")
    assert (found.refusal, found.max_model_len) == (None, 46304)


def test_the_length_in_the_hint_is_enough() -> None:
    found = refused(LLAMA_8B, "24GiB")
    assert found is not None
    assert found.hint is not None
    length = int(found.hint.split()[2])
    assert refused(LLAMA_8B, "24GiB", max_model_len=length) is None
    assert refused(LLAMA_8B, "24GiB", max_model_len=length + 1) is not None


def test_a_cache_of_a_given_size_is_checked_too() -> None:
    """One request of 131,072 tokens takes 16 GiB and a block of 2 MiB is never used."""
    assert refused(LLAMA_8B, "80GiB", kv_cache_memory_bytes=2**34) is not None
    assert refused(LLAMA_8B, "80GiB", kv_cache_memory_bytes=2**34 + 2**21) is None


# ModelOpt's own file.


def test_hf_quant_config_says_how_weights_and_kv_cache_are_stored() -> None:
    """transformers_utils/config.py:get_config: the file stands for quantization_config."""
    side = {"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    found = budget(LLAMA_8B, gpu_mem="80GiB", side_files={"hf_quant_config.json": side}).to_dict()
    assert {line["name"]: line["formula"] for line in found["weights"]["lines"]}[
        "linear weights"] == "6,979,321,856 x 8 bits"
    assert found["kv_cache"]["bytes_per_token"] == 2 * 32 * 8 * 128
