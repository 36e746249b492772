"""NVFP4 kernel lists and forced kernels; answers are those of the engine's own selector."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from candidate_lists import TABLE, facts
from quantplan.dispatch.pins import select

from quantplan import explain

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 1, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False}
NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
         "group_size": 16}
EMULATED = "EmulationNvFp4LinearKernel"
CUTLASS = "CutlassNvFp4LinearKernel"
MARLIN = "MarlinNvFp4LinearKernel"
HUMMING = "HummingNvFp4LinearKernel"
CUTEDSL_A16 = "FlashInferCuteDslNvFp4W4A16LinearKernel"


def ct(weight_only: bool = False) -> dict[str, Any]:
    inputs = None if weight_only else {**NVFP4, "dynamic": "local"}
    return {**LLAMA, "quantization_config": {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "ignore": ["lm_head"], "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": NVFP4, "input_activations": inputs}}}}


def row(weight_only: bool, capability: int, **options: Any) -> dict[str, Any]:
    found = explain(ct(weight_only), capability=capability, **options).to_dict()
    layer: dict[str, Any] = next(x for x in found["layers"] if x["path"].endswith("qkv_proj"))
    return layer


@pytest.mark.parametrize("capability, kernel, mode", [
    (75, MARLIN, "W4A16_nvfp4"), (89, MARLIN, "W4A16_nvfp4"), (90, HUMMING, "W4A16"),
    (100, "FlashInferCuteDslNvFp4LinearKernel", "W4A4_nvfp4"),
    (110, "FlashInferCutlassNvFp4LinearKernel", "W4A4_nvfp4"),
    (120, "FlashInferCutlassNvFp4LinearKernel", "W4A4_nvfp4")])
def test_w4a4_walks_its_list(capability: int, kernel: str, mode: str) -> None:
    found = row(False, capability, dtype="float16" if capability < 80 else "bfloat16")
    assert (found["family"], found["kernel"], found["mode"]) == ("nvfp4_w4a4", kernel, mode)


@pytest.mark.parametrize("capability, kernel, asked", [
    (80, MARLIN, [CUTEDSL_A16]), (100, CUTEDSL_A16, []), (103, CUTEDSL_A16, []),
    (110, MARLIN, [CUTEDSL_A16]), (120, MARLIN, [])])
def test_w4a16_forces_a_kernel(capability: int, kernel: str, asked: list[str]) -> None:
    """CuTe-DSL is asked everywhere and forced on 10.0 and 10.3 only; no list is walked."""
    found = row(True, capability)
    assert found["family"] is None
    assert (found["kernel"], [r["kernel"] for r in found["rejected"]]) == (kernel, asked)
    assert [step["kind"] for step in found["steps"]] == ["Pinned"]


def test_w4a16_walks_its_list_on_9_0() -> None:
    found = row(True, 90)
    assert (found["family"], found["kernel"], found["mode"]) == ("nvfp4_w4a16", HUMMING, "W4A16")
    assert [r["kernel"] for r in found["rejected"]] == [CUTEDSL_A16]


def test_a_forced_kernel_is_not_disabled() -> None:
    found = row(True, 80, env={"VLLM_DISABLED_KERNELS": MARLIN})
    assert found["kernel"] == MARLIN


@pytest.mark.parametrize("capability, kernel", [(80, EMULATED), (100, CUTLASS)])
def test_batch_invariance_forces_w4a4(capability: int, kernel: str) -> None:
    found = row(False, capability, env={"VLLM_BATCH_INVARIANT": "1"}, linear_backend="marlin")
    assert (found["family"], found["kernel"]) == (None, kernel)


@pytest.mark.parametrize("capability, kernel", [(80, EMULATED), (120, CUTLASS)])
def test_batch_invariance_refuses_w4a16(capability: int, kernel: str) -> None:
    found = explain(ct(True), capability=capability, env={"VLLM_BATCH_INVARIANT": "1"}).to_dict()
    assert (found["error"]["type"], found["error"]["message"]) == (
        "ValueError", f"{kernel} does not support W4A16")


def test_a_forced_kernel_below_its_capability_is_refused() -> None:
    found = explain(ct(True), capability=70, dtype="float16").to_dict()
    assert found["error"]["message"] == (
        f"Forced NVFP4 kernel {MARLIN} is not supported: Marlin FP4 not available")


def test_an_unknown_library_holds_a_pin_back() -> None:
    """Whether FlashInfer is usable decides between CuTe-DSL and Marlin on 10.0."""
    found = select(TABLE, "nvfp4_w4a16", facts("nvfp4_w4a16", 100, lib__flashinfer=None))
    assert found.kernel == MARLIN
    assert [(a.kernel, a.if_facts) for a in found.alternatives] == [
        (CUTEDSL_A16, ("lib.flashinfer",))]
