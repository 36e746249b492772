"""W4AFP8, Quark, bitsandbytes, MXFP8 and NVFP4 experts under SGLang, each with the engine's own
answer to that row of its golden file, or to the config given here."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import explain
from tests.dispatch.test_sglang_golden import ask, named

MODEL = "qwen3_30b_a3b"
W4AFP8 = {"quant_method": "w4afp8", "activation_scheme": "dynamic"}
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
LLAMA = named("llama8b|w4afp8|sm90")["case"]["config"]
MOE = named(f"{MODEL}|none|sm90")["case"]["config"]


@pytest.mark.parametrize("row, path, method, kernel", [
    ("llama8b|w4afp8|sm120", "model.layers.*.mlp.down_proj", "Fp8LinearMethod",
     "fp8_blockwise_scaled_mm"),
    ("llama8b|quark_fp8|sm90", "model.layers.*.self_attn.qkv_proj", "QuarkLinearMethod",
     "torch._scaled_mm"),
    ("deepseek_v3|modelopt_fp4|sm100|tp_size=8", "model.layers.*.mlp.shared_experts.gate_up_proj",
     "ModelOptFp4LinearMethod", "nvfp4_gemm_swiglu_nvfp4_quant"),
])
def test_linear_layers(row: str, path: str, method: str, kernel: str) -> None:
    found = next(x for x in ask(named(row))["layers"] if x["path"] == path)
    assert (found["method"], found["kernel"]) == (method, kernel)


@pytest.mark.parametrize("row, method, runner", [
    ("w4afp8|sm103", "W4AFp8MoEMethod", None),
    ("bnb4|sm75", "BitsAndBytesMoEMethod", None),
    ("cli_mxfp8|sm100", "Fp8MoEMethod", "flashinfer_trtllm"),
    ("cli_modelopt_fp4|sm103", "ModelOptNvFp4OnlineFusedMoEMethod", "flashinfer_trtllm"),
    ("modelopt_fp4|sm100|moe_runner_backend=triton", "ModelOptNvFp4FusedMoEMethod", "triton"),
])
def test_experts(row: str, method: str, runner: str | None) -> None:
    layers = {layer["path"]: layer for layer in ask(named(f"{MODEL}|{row}"))["layers"]}
    found = layers["model.layers.*.mlp.experts"]
    assert (found["method"], found["moe_runner_backend"]) == (method, runner)


def test_experts_that_no_runner_serves_are_told() -> None:
    findings = ask(named(f"{MODEL}|modelopt_fp4|sm100|moe_runner_backend=triton"))["findings"]
    assert "no-operator" in {finding["id"] for finding in findings}


@pytest.mark.parametrize("version, tp, message", [
    ("0.5.22", 1, None), ("0.5.23", 2, None),
    ("0.5.23", 1, "'W4AFp8Config' object has no attribute 'activation_scheme'"),
])
def test_a_dense_mlp_asks_w4afp8_for_what_it_has_not(
    version: str, tp: int, message: str | None
) -> None:
    answer = explain({**LLAMA, "quantization_config": W4AFP8}, engine="sglang",
                     engine_version=version, capability=100, tp=tp).to_dict()
    assert (answer["error"] and answer["error"]["message"]) == message


def fp4(**fields: Any) -> dict[str, Any]:
    """Return a ModelOpt NVFP4 config of experts only."""
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
            "ignore": ["lm_head", "model.layers.0.self_attn*"], **fields}


FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


@pytest.mark.parametrize("config, capability, options, kind, message", [
    (fp4(group_size=32), 86, {}, "ValueError", "NVFP4 Marlin MoE requires group_size=16, got 32."),
    (fp4(group_size=32), 100, {}, "AssertionError",
     "Expected w13_weight_scale.dim(2) == 128, got 64"),
    (fp4(), 100, {"tp": 8, "moe_backend": "flashinfer_cutedsl"}, "ValueError",
     "Expected split dim divisible by group_size=64, got 96."),
    (fp4(), 120, {"tp": 8, "enable_expert_parallel": True}, "RuntimeError",
     "Attempting to broadcast a dimension of length 16 at -1! Mismatching argument at index 1 had "
     "torch.Size([16]); but expected shape should be broadcastable to [128]"),
    (None, 100, {"quantization": "nvfp4_online", "moe_backend": "triton"}, "ValueError",
     "--quantization nvfp4_online supports only --moe-runner-backend flashinfer_trtllm or "
     "flashinfer_trtllm_routed, or flashinfer_cutedsl."),
    (None, 120, {"quantization": "mxfp8"}, "RuntimeError", "MXFP8 MoE quantization requires SM100 "
     "or ROCm gfx95 (gfx942 converts MXFP8 to block-fp8 at load instead)."),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 90, {}, "NotImplementedError", ""),
])
def test_refusals_of_experts(
    config: dict[str, Any] | None, capability: int, options: dict[str, Any], kind: str,
    message: str,
) -> None:
    model = {**MOE, **({} if config is None else {"quantization_config": config})}
    error = explain(model, engine="sglang", engine_version="0.5.22", capability=capability,
                    **options).to_dict()["error"]
    assert (error["type"], error["message"]) == (kind, message)


@pytest.mark.parametrize("env, method", [
    ({}, "ModelOptNvFp4OnlineFusedMoEMethod"),
    ({"SGLANG_FP4_IGNORED_LAYERS": "model.layers.0.mlp.experts"}, "Fp8MoEMethod"),
])
def test_experts_that_a_variable_keeps_as_they_are(env: dict[str, str], method: str) -> None:
    answer = explain({**MOE, "quantization_config": FP8_BLOCK}, engine="sglang",
                     engine_version="0.5.22", capability=100, quantization="nvfp4_online", env=env)
    layers = {layer["path"]: layer for layer in answer.to_dict()["layers"]}
    assert layers["model.layers.*.mlp.experts"]["method"] == method
