"""--linear-backend for one kernel family (linear_backend_per_quant of --kernel-config)."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.tables.errors import UsageError

from quantplan import explain

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 1, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False}
ALGOS = {"nvfp4_w4a4": "NVFP4", "nvfp4_w4a16": "W4A16_NVFP4", "fp8_w8a8": "FP8"}


def ask(family: str, capability: int = 100, **options: Any) -> dict[str, Any]:
    config = {"quant_method": "modelopt", "quant_algo": ALGOS[family], "ignore": ["lm_head"]}
    return explain({**LLAMA, "quantization_config": config}, capability=capability,
                   **options).to_dict()


def kernel(found: dict[str, Any]) -> str:
    return str(next(row["kernel"] for row in found["layers"]
                    if row["path"].endswith("qkv_proj")))


@pytest.mark.parametrize("family, own, backend, chosen", [
    ("nvfp4_w4a4", {"nvfp4_w4a4": "cutlass"}, "marlin", "CutlassNvFp4LinearKernel"),
    ("nvfp4_w4a4", {"nvfp4_w4a4": "auto"}, "marlin", "FlashInferCuteDslNvFp4LinearKernel"),
    ("nvfp4_w4a4", {"fp8_w8a8": "marlin"}, "cutlass", "CutlassNvFp4LinearKernel"),
    ("nvfp4_w4a16", {"nvfp4_w4a16": "humming"}, None, "HummingNvFp4LinearKernel"),
    ("nvfp4_w4a16", {"nvfp4_w4a16": "auto"}, "humming", "FlashInferCuteDslNvFp4W4A16LinearKernel"),
    ("fp8_w8a8", {"fp8_w8a8": "marlin"}, "cutlass", "MarlinFP8ScaledMMLinearKernel")])
def test_a_family_s_own_backend_wins(
    family: str, own: dict[str, str], backend: str | None, chosen: str
) -> None:
    found = ask(family, linear_backend=backend, linear_backend_per_quant=own)
    assert kernel(found) == chosen
    assert found["deployment"]["linear_backend_per_quant"] == own


def test_batch_invariance_wins_over_it() -> None:
    found = ask("nvfp4_w4a4", linear_backend_per_quant={"nvfp4_w4a4": "marlin"},
                env={"VLLM_BATCH_INVARIANT": "1"})
    assert kernel(found) == "CutlassNvFp4LinearKernel"


def test_the_step_names_the_option() -> None:
    found = ask("fp8_w8a8", linear_backend_per_quant={"fp8_w8a8": "machete"})
    row = next(row for row in found["layers"] if row["path"].endswith("qkv_proj"))
    assert row["steps"][0]["because"] == (
        "--kernel-config.linear_backend_per_quant.fp8_w8a8 machete has no kernel for this layer "
        "type; the whole list is tried")


def test_an_unknown_family_changes_nothing_and_is_told() -> None:
    found = ask("nvfp4_w4a4", linear_backend_per_quant={"nvfp4": "marlin"})
    assert kernel(found) == "FlashInferCuteDslNvFp4LinearKernel"
    assert "unknown-linear-family" in [f["id"] for f in found["findings"]]


@pytest.mark.parametrize("own, words", [
    ({}, "linear_backend_per_quant; wanted at least one family; found none"),
    ({"nvfp4_w4a4": "flashinfer-cutlass"},
     "linear_backend_per_quant: nvfp4_w4a4: flashinfer-cutlass; wanted auto, b12x"),
    ({"nvfp4_w4a4": 1}, "linear_backend_per_quant; wanted a mapping of text to text")])
def test_values_that_the_engine_does_not_have(own: Any, words: str) -> None:
    """KernelConfig wants at least one entry, and does not normalise these values."""
    with pytest.raises(UsageError) as raised:
        ask("nvfp4_w4a4", linear_backend_per_quant=own)
    assert str(raised.value).startswith(words)
