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


# What runs only after selection.


def forward_errors(weight_only: bool, capability: int, **options: Any) -> list[str]:
    found = explain(ct(weight_only), capability=capability, **options).to_dict()
    return [f["message"].split("fails: ")[1] for f in found["findings"]
            if f["id"] == "kernel-cannot-run"]


@pytest.mark.parametrize("weight_only, capability, options, says", [
    (True, 100, {"dtype": "float16"},
     "FlashInfer CuTe-DSL W4A16 requires BF16 input, got torch.float16"),
    (False, 100, {"libs": {"cutedsl": False}}, "nvidia-cutlass-dsl is not installed"),
    (False, 80, {"linear_backend": "flashinfer_trtllm"},
     "No compiled nvfp4 quantization kernel for SM"),
    (False, 80, {"linear_backend": "flashinfer_cudnn"},
     "No compiled nvfp4 quantization kernel for SM"),
    (False, 120, {"linear_backend": "flashinfer_trtllm"},
     "FlashInfer mm_fp4 with backend trtllm serves compute capability 10.0 and 10.3"),
    (False, 100, {"linear_backend": "flashinfer_trtllm", "dtype": "float16"},
     "Unsupported output dtype: torch.float16. Only torch.bfloat16 is supported for TRTLLM FP4 "
     "GEMM operations.")])
def test_kernels_that_selection_takes_and_that_cannot_run(
    weight_only: bool, capability: int, options: dict[str, Any], says: str
) -> None:
    """The kernel's own forward, and mm_fp4 of FlashInfer 0.7.0.post1."""
    assert forward_errors(weight_only, capability, **options) == [says]


@pytest.mark.parametrize("weight_only", [True, False])
@pytest.mark.parametrize("capability", [80, 90, 100, 103, 110, 120, 121])
def test_the_default_choice_runs(weight_only: bool, capability: int) -> None:
    assert forward_errors(weight_only, capability) == []


def test_a_group_cut_by_tensor_parallelism_is_told() -> None:
    """compressed-tensors checks no group: 6840 / 2 = 3420 is no multiple of 16."""
    config = {**ct(), "intermediate_size": 6840}
    found = explain(config, capability=100, tp=2).to_dict()
    assert found["outcome"] == "ok"
    assert [f["message"] for f in found["findings"] if f["id"] == "kernel-cannot-run"] == [
        "FlashInferCuteDslNvFp4LinearKernel is selected for model.layers.0.mlp.down_proj, but its "
        "first forward fails: last dim has to be multiple of 16, but got 3420."]
