"""Routed experts under SGLang 0.5.22, each with the engine's own answer to that row of its golden
file: the runner and the method, or the words with which the start ends."""

from __future__ import annotations

import pytest

from quantplan import explain
from tests.dispatch.test_sglang_golden import ROWS, ask, named

MODEL = "qwen3_30b_a3b"
TRTLLM = ("Invalid quantization 'awq'. \nFlashInfer TRTLLM MOE supports only: 'modelopt_fp4', "
          "'nvfp4_online', 'fp8', 'modelopt_fp8', 'modelopt_mixed', 'compressed-tensors', or "
          "bfloat16 (None).")


@pytest.mark.parametrize("row, method, runner", [
    ("none|sm90", "UnquantizedFusedMoEMethod", "triton"),
    ("none|sm103", "UnquantizedFusedMoEMethod", "flashinfer_trtllm"),
    ("none|sm80|moe_runner_backend=cutlass", "UnquantizedFusedMoEMethod", "triton"),
    ("fp8_block|sm80", "Fp8MoEMethod", "triton"),
    ("fp8_block|sm100", "Fp8MoEMethod", "flashinfer_trtllm"),
    ("fp8_block|sm90|moe_runner_backend=flashinfer_cutlass", "Fp8MoEMethod", "triton"),
    ("fp8_dyn|sm80|moe_runner_backend=marlin", "Fp8MoEMethod", None),
    ("awq_g128|sm75", "UnquantizedFusedMoEMethod", "triton"),
    ("awq_g128|sm80", "AWQMoEMethod", "marlin"),
    ("awq_g128|sm80|tp_size=8", "MoeWNA16Method", "triton"),
    ("gptq8_g128|sm80", "GPTQMarlinMoEMethod", "marlin"),
    ("gptq_cli_wna16|sm80", "MoeWNA16Method", "triton"),
    ("modelopt_fp4|sm86", "ModelOptNvFp4FusedMoEMethod", "marlin"),
    ("modelopt_fp4|sm121", "ModelOptNvFp4FusedMoEMethod", "flashinfer_trtllm"),
])
def test_the_runner(row: str, method: str, runner: str | None) -> None:
    layers = {layer["path"]: layer for layer in ask(named(f"{MODEL}|{row}"))["layers"]}
    found = layers["model.layers.*.mlp.experts"]
    assert (found["method"], found["moe_runner_backend"]) == (method, runner)
    assert layers["model.layers.*.mlp.gate"]["method"] == "UnquantizedLinearMethod"


@pytest.mark.parametrize("row, message", [
    ("fp8_block|sm90|tp_size=8", "The output_size of gate's and up's weight = 96 is not divisible "
     "by weight quantization block_n = 128."),
    ("fp8_dyn|sm89|moe_runner_backend=cutlass", "cutlass_fp8 MoE requires block quantization"),
    ("fp8_dyn|sm100", ""),
    ("modelopt_fp4|sm120|tp_size=8", "The intermediate size required padding, but padding is also "
     "implemented for gated activations"),
    ("modelopt_fp4|sm120|moe_runner_backend=cutlass", "moe_runner_backend=cutlass is not supported "
     "for NVFP4 MoE. Use --moe-runner-backend flashinfer_cutlass instead."),
    ("awq_g128|sm80|moe_runner_backend=triton", ""),
    ("awq_g128|sm100|moe_runner_backend=flashinfer_trtllm", TRTLLM),
    ("awq_g128|sm100", "torch.bfloat16 is not supported for quantization method awq. Supported "
     "dtypes: [torch.float16]"),
])
def test_the_words_of_the_refusal(row: str, message: str) -> None:
    assert ask(named(f"{MODEL}|{row}"))["error"]["message"] == message


@pytest.mark.parametrize("capability", [90, 100])
def test_cutlass_has_whole_experts_only(capability: int) -> None:
    """The engine's own answer to --quantization fp8 --moe-runner-backend cutlass on two ranks with
    expert parallelism."""
    config = named(f"{MODEL}|fp8_block|sm80")["case"]["config"]
    asked = {"engine": "sglang", "engine_version": "0.5.22", "capability": capability, "tp": 2,
             "quantization": "fp8", "moe_backend": "cutlass"}
    error = explain(config, enable_expert_parallel=True, **asked).to_dict()["error"]
    assert (error["type"], error["message"]) == (
        "AssertionError", "FP8/MXFP8 Cutlass MoE is only supported with ep_size == 1")
    assert explain(config, **asked).to_dict()["outcome"] == "ok"


@pytest.mark.parametrize("row, shared", [
    ("awq_g128|sm75|tp_size=8", True),
    ("cli_fp8|sm90|tp_size=8", False),
    ("fp8_block|sm100|tp_size=8", True),
])
def test_where_shared_experts_stay_apart(row: str, shared: bool) -> None:
    paths = {layer["path"] for layer in ask(named(f"deepseek_v3|{row}"))["layers"]}
    assert ("model.layers.*.mlp.shared_experts.gate_up_proj" in paths) == shared
    assert "model.layers.*.self_attn.attn_mqa" in paths


MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 1, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "torch_dtype": "bfloat16", "hidden_act": "silu"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def test_mixtral_has_no_pass_of_its_own() -> None:
    """The engine's answer to this config on 10.0: Triton."""
    answer = explain(MIXTRAL, engine="sglang", engine_version="0.5.22", capability=100).to_dict()
    layers = {layer["path"]: layer for layer in answer["layers"]}
    found = layers["model.layers.*.block_sparse_moe.experts"]
    assert (found["method"], found["moe_runner_backend"]) == ("UnquantizedFusedMoEMethod", "triton")


def test_mixtral_under_plain_awq_is_another_class() -> None:
    """The engine builds QuantMixtralForCausalLM for it (model_loader/utils.py): of 8 experts two
    ranks hold four each, every one in three layers that no rank cuts."""
    answer = explain({**MIXTRAL, "quantization_config": AWQ}, engine="sglang",
                     engine_version="0.5.22", capability=75, tp=2).to_dict()
    moe = "model.layers.*.block_sparse_moe"
    layers = {x["path"]: x for x in answer["layers"] if x["path"].startswith(moe)}
    assert list(layers) == [f"{moe}.experts.*.w1", f"{moe}.experts.*.w2", f"{moe}.experts.*.w3",
                            f"{moe}.gate"]
    assert len(answer["layers"]) == len({x["path"] for x in answer["layers"]})
    last = layers[f"{moe}.experts.*.w2"]
    assert (last["module"], last["method"], last["kernel"], last["n"], last["k"]) == (
        "ReplicatedLinear", "AWQLinearMethod", "awq_dequantize", 4096, 14336)


@pytest.mark.parametrize("backend, told", [("triton_kernel", True), ("cutlass", False),
                                           ("triton", False)])
def test_experts_that_have_no_runner_are_told(backend: str, told: bool) -> None:
    """Fp8MoEMethod.create_moe_runner makes none for marlin and triton_kernel, and apply calls it;
    cutlass has a path of its own (layers/quantization/fp8.py)."""
    answer = explain("qwen3-30b-a3b", engine="sglang", capability=90, moe_backend=backend,
                     as_format="fp8-block")
    assert answer.trace.error is None
    assert ("no-operator" in {f.id for f in answer.trace.findings}) is told


@pytest.mark.parametrize("row, capability, shape", [
    (f"{MODEL}|none|sm80", 80, "-2048: [128, 192, -2048]"),
    ("deepseek_v3|awq_g128|sm100", 90, "-7168: [257, -7168, 512]"),
])
def test_experts_of_whole_columns_have_no_scales(row: str, capability: int, shape: str) -> None:
    """The engine's answers for AWQ of group size -1, which divides the hidden size: on
    MoeWNA16Method, and on Marlin with the shared expert among the routed ones."""
    case = next(one for one in ROWS if one["id"].startswith(row))["case"]
    answer = explain({**case["config"], "quantization_config": {**AWQ, "group_size": -1}},
                     engine="sglang", capability=capability, tp=8).to_dict()
    assert (answer["error"]["type"], answer["error"]["message"]) == (
        "RuntimeError", f"Trying to create tensor with negative dimension {shape}")


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
def test_modelopt_fp8_experts_on_10_0(version: str) -> None:
    """Without a config in config.json the pass on 10.x sees no method and chooses TRTLLM; the
    engine's layer then names Triton's runner."""
    case = next(row for row in ROWS if row["id"].startswith(f"{MODEL}|none|sm80"))["case"]
    side = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    answer = explain(case["config"], engine="sglang", engine_version=version, capability=100,
                     side_files={"hf_quant_config.json": side}).to_dict()
    layers = {layer["path"]: layer for layer in answer["layers"]}
    found = layers["model.layers.*.mlp.experts"]
    assert (found["method"], found["moe_runner_backend"]) == ("ModelOptFp8MoEMethod", "triton")
