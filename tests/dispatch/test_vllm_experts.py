"""Routed experts: their parallel sizes, orders, routing, findings, and the kernels that exchange
tokens. Answers without another source are those of vLLM 0.32.0 on an emulated GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.vllm.experts.routing import routing_method

from quantplan import explain

CONFIGS = json.loads((Path(__file__).parent / "experts_configs.json").read_text(encoding="utf-8"))
QWEN = CONFIGS["qwen3_moe"]
PREFIX = "model.layers.0.mlp.experts"


def ask(quant: str | None, capability: int, **options: Any) -> dict[str, Any]:
    model = options.pop("model", QWEN)
    whole = {**model, "quantization_config": CONFIGS[quant]} if quant else model
    return explain(whole, engine_version="0.32.0", capability=capability, **options).to_dict()


def layer(found: dict[str, Any], name: str = "routed_experts") -> dict[str, Any]:
    return next(row for row in found["layers"] if row["path"].endswith(name))


def chosen(quant: str | None, capability: int, **options: Any) -> str:
    return str(layer(ask(quant, capability, **options))["experts"]["class"])


def findings(found: dict[str, Any]) -> dict[str, str]:
    return {row["id"]: row["message"] for row in found["findings"]}


@pytest.mark.parametrize("options, kernel, step", [
    ({}, "TritonExperts",
     "on capability 9.0 block FP8 experts prefer Triton without expert parallelism"),
    ({"tp": 2, "enable_expert_parallel": True}, "FlashInferExperts",
     "on capability 9.0 block FP8 experts prefer FlashInfer CUTLASS with expert parallelism")])
def test_block_fp8_on_hopper_depends_on_expert_parallelism(
    options: dict[str, Any], kernel: str, step: str
) -> None:
    """oracle/fp8.py:_get_priority_backends."""
    found = explain({**QWEN, "quantization_config": CONFIGS["fp8b"]}, capability=90,
                    engine_version="0.32.0", **options)
    experts = next(row for row in found.trace.layers if row.moe_backend)
    assert experts.kernel == kernel and experts.selection is not None
    assert next(s for s in experts.selection.steps if s.kind == "Reordered").because == step


def test_parallel_sizes_as_the_engine_prints_them() -> None:
    """Four ranks of experts over two of tensor and two of data parallelism, whose tokens are split
    too; and FlashInfer's kernels that exchange tokens themselves, which ask for such ranks."""
    spread = {"tp": 2, "dp": 2, "enable_expert_parallel": True}
    told = next(row["engine_reason"] for row in layer(ask("fp8b", 100, **spread))["rejected"]
                if row["kernel"] == "TrtLlmFp8ExpertsMonolithic")
    assert told == (
        "kernel does not support parallel config FusedMoEParallelConfig(tp_size=1, pcp_size=1, "
        "dp_size=2, ep_size=4, tp_rank=0, pcp_rank=0, dp_rank=0, ep_rank=0, sp_size=2, "
        "use_ep=True, all2all_backend='allgather_reducescatter', enable_eplb=False)")
    error = ask("mo_fp4", 100, tp=4, moe_backend="flashinfer_moe_ep_cutedsl")["error"]
    assert error["message"] == (
        "NvFp4 MoE backend 'FLASHINFER_MOE_EP_CUTEDSL' does not support the deployment "
        "configuration since kernel does not support parallel config FusedMoEParallelConfig("
        "tp_size=4, pcp_size=1, dp_size=1, ep_size=1, tp_rank=0, pcp_rank=0, dp_rank=0, "
        "ep_rank=0, sp_size=1, use_ep=False, all2all_backend='passthrough', enable_eplb=False).")


@pytest.mark.parametrize("options, weights", [
    ({}, 128 * 3 * 2048 * 768), ({"tp": 2}, 128 * 3 * 2048 * 384),
    ({"tp": 2, "enable_expert_parallel": True}, 64 * 3 * 2048 * 768),
    ({"tp": 2, "dp": 2}, 128 * 3 * 2048 * 192)])
def test_the_weights_of_one_rank(options: dict[str, Any], weights: int) -> None:
    """Experts are split over all ranks of tensor and data parallelism, or handed out whole."""
    trace = explain(QWEN, capability=90, **options).trace
    assert next(row.weights for row in trace.layers if row.moe_backend) == weights


def test_experts_without_expert_parallelism_must_divide() -> None:
    error = ask(None, 90, model={**QWEN, "moe_intermediate_size": 769}, tp=2)["error"]
    assert (error["type"], error["message"], error["layer"]) == ("AssertionError", "", PREFIX)


@pytest.mark.parametrize("dp, n", [(1, 2048), (2, 4096)])
def test_shared_experts_are_whole_where_experts_split_tokens(dp: int, n: int) -> None:
    """models/deepseek_v2.py:DeepseekV2MLP with is_sequence_parallel: 2 x 2048 features."""
    found = explain("deepseek-r1", engine_version="0.32.0", capability=100, tp=2, dp=dp,
                    enable_expert_parallel=True).to_dict()
    assert layer(found, "shared_experts.gate_up_proj")["n"] == n


@pytest.mark.parametrize("facts, name", [
    ({"scoring": "softmax", "renormalize": True}, "RenormalizeNaive"),
    ({"scoring": "softmax", "renormalize": False}, "Default"),
    ({"scoring": "sigmoid", "renormalize": True}, "SigmoidRenorm"),
    ({"scoring": "sigmoid", "renormalize": False}, "Sigmoid"),
    ({"scoring": "sigmoid", "renormalize": True, "score_bias": True}, "MiniMax2"),
    ({"scoring": "softmax", "renormalize": True, "score_bias": True}, "Unspecified"),
    ({"scoring": "sigmoid", "renormalize": True, "score_bias": True, "grouped": True, "groups": 8,
      "topk_groups": 4}, "DeepSeekV3"),
    ({"scoring": "sqrtsoftplus", "renormalize": True}, "DeepseekV4"),
    ({"scoring": "sqrtsoftplus", "renormalize": False}, "Unspecified"),
    ({"scoring": "tanh", "renormalize": True}, "Unspecified"),
    ({"routing": "Llama4", "scoring": "sigmoid"}, "Llama4")])
def test_routing_methods(facts: dict[str, Any], name: str) -> None:
    """fused_moe/config.py:get_routing_method_type."""
    assert routing_method(facts, False) == name


def test_a_blackwell_class_that_routes_takes_part_of_the_routing_methods() -> None:
    """TrtLlmNvFp4ExpertsMonolithic routes itself; experts of a softmax that is not renormalized go
    to its modular sibling."""
    plain = {**QWEN, "norm_topk_prob": False}
    assert chosen("ct_nvfp4", 100) == "TrtLlmNvFp4ExpertsMonolithic"
    assert chosen("ct_nvfp4", 100, model=plain) == "TrtLlmNvFp4ExpertsModular"


@pytest.mark.parametrize("config, flags, message", [
    ({}, {"tp": 2, "enable_expert_parallel": True}, None),
    ({"num_experts": 0}, {"enable_expert_parallel": True},
     "Number of experts in the model must be greater than 0 when expert parallelism is enabled."),
    ({"num_experts": 2}, {"tp": 4},
     "Tensor parallel size 4 is greater than the number of experts 2.")])
def test_how_many_experts_there_must_be(
    config: dict[str, Any], flags: dict[str, Any], message: str | None
) -> None:
    """config/model.py:ModelConfig._verify_with_expert_parallelism; models/qwen3_moe.py."""
    error = ask(None, 90, model={**QWEN, **config}, **flags)["error"]
    assert (error and error["message"]) == message


@pytest.mark.parametrize("options, message", [
    ({}, "DeepSeek V4 MegaMoE currently requires expert parallel. Enable it with "
     "--enable-expert-parallel, or pick a different moe backend."),
    ({"tp": 2, "enable_expert_parallel": True}, None)])
def test_deepseek_v4_has_a_kernel_of_its_own(
    options: dict[str, Any], message: str | None
) -> None:
    """models/deepseek_v4/nvidia/model.py:DeepseekV4MoE."""
    found = explain("deepseek-v4-flash", engine_version="0.32.0", capability=100,
                    moe_backend="deep_gemm_mega_moe", **options).to_dict()
    assert (found["error"] and found["error"]["message"]) == message
    if message is None:
        assert not any(row.get("experts") for row in found["layers"])
        assert "native-mega-moe" in findings(found)


def test_a_mega_kernel_of_one_architecture_only() -> None:
    """config/kernel.py:validate_flashinfer_moe_ep_model."""
    error = ask("mxfp4", 100, moe_backend="flashinfer_moe_ep_mega_deep_gemm")["error"]
    assert (error["type"], error["message"]) == (
        "ValidationError", "moe_backend='flashinfer_moe_ep_mega_deep_gemm' is only supported for "
        "DeepSeek-V4 models (['DeepSeekV4MTPModel', 'DeepseekV41ForCausalLM', "
        "'DeepseekV4ForCausalLM']), but the model is ['Qwen3MoeForCausalLM'].")


def test_several_reasons_of_one_class_are_joined() -> None:
    """experts/flashinfer_moe_ep.py:FlashInferMoeEpExperts.is_supported_config."""
    error = ask("mo_fp4a16", 100, tp=2, enable_expert_parallel=True, dtype="float16",
                moe_backend="flashinfer_moe_ep_cutedsl")["error"]
    assert error["message"] == (
        "NvFp4 MoE backend 'FLASHINFER_MOE_EP_CUTEDSL' does not support the deployment "
        "configuration since kernel does not support A16 activations with NVFP4 weights, "
        "activation dtype torch.float16.")


@pytest.mark.parametrize("quant, capability, options, finding, part", [
    ("q_mx4", 90, {"libs": {"flashinfer": False}}, "experts-class-not-asked",
     "QuarkOCP_MX_MoEMethod takes the first class of the backend HUMMING, "
     "BatchedHummingGroupedExperts, which refuses this layer (kernel does not support "
     "('standard',) activation format)"),
    ("fp8b64", 89, {"quantization": "humming"}, "experts-without-class",
     "HummingMoEMethod is built without one, and loading the weights raises AssertionError"),
    ("ct_nvfp4", 90, {}, "weight-only",
     "routed_experts: the checkpoint asks for quantized activations, HummingIndexedExperts "
     "computes W4A16_nvfp4"),
    (None, 90, {"enable_expert_parallel": True}, "one-expert-rank",
     "--enable-expert-parallel changes nothing on one rank")])
def test_what_comes_of_experts(
    quant: str | None, capability: int, options: dict[str, Any], finding: str, part: str
) -> None:
    found = ask(quant, capability, **options)
    assert any(row["id"] == finding and part in row["message"] for row in found["findings"])


def test_a_flag_for_experts_that_there_are_none_of() -> None:
    found = explain("llama-3.1-8b", capability=90, moe_backend="marlin").to_dict()
    assert findings(found)["moe-backend-not-read"] == (
        "--moe-backend marlin changes nothing: the model has no routed experts")


@pytest.mark.parametrize("quant, capability, mode", [
    (None, 90, "W16A16"), ("fp8b", 90, "W8A8_fp8"), ("fp8d", 86, "W8A16_fp8"),
    ("ct_int8", 89, "W8A8_int8"), ("ct_nvfp4", 100, "W4A4_nvfp4"), ("ct_nvfp4", 89, "W4A16_nvfp4"),
    ("ct_w4a16", 90, "W4A16"), ("ct_w8a16", 80, "W8A16"), ("ct_mxfp8", 100, "W8A8_mxfp8"),
    ("mxfp4", 100, "W4A8_mxfp8"), ("q_mx6", 90, "emulated_mxfp6"),
    ("q_mx4a6", 90, "emulated_mxfp4"), ("i_3gs", 90, None)])
def test_what_experts_compute(quant: str | None, capability: int, mode: str | None) -> None:
    """The tensor types that the chosen class multiplies; Humming's method decides for itself."""
    assert layer(ask(quant, capability))["experts"]["mode"] == mode
