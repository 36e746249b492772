"""Other platforms: names and classes as the engines' own code gives them when it is imported as on
a CPU, ROCm, XPU or NPU; gates, dtypes and lists as their sources say.

platform_answers.jsonl: engine, version, platform, GPU, quantization config (CONFIGS),
--quantization, and what ModelConfig._verify_quantization answers: the method (SGLang: with the
class that get_quantization_config returns for it), or the exception.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA
from quantplan.tables.errors import NotKnownError, UsageError

from quantplan import PlatformExplanation, explain_platform

CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8_block": {"quant_method": "fp8", "activation_scheme": "dynamic",
                  "weight_block_size": [128, 128]},
    "ct": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "modelopt_fp8": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "modelopt_nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp4": {"quant_method": "mxfp4"}, "quark": {"quant_method": "quark"},
    "auto_round": {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
                   "packing_format": "auto_round:auto_gptq"},
}
ROWS = [json.loads(line) for line in (Path(__file__).parent / "platform_answers.jsonl").read_text(
    encoding="utf-8").splitlines()]
AFTER_THE_NAME = ("config fields", "capability gate", "activation dtype")


def ask(platform: str, quant: Any = None, engine: str = "sglang", dtype: str = "float16",
        **options: Any) -> PlatformExplanation:
    """Return our answer for a small Llama with the quantization config."""
    config = {**LLAMA, "torch_dtype": dtype, **({"quantization_config": quant} if quant else {})}
    return explain_platform(config, platform, engine=engine, **options)


@pytest.mark.parametrize("engine, version, platform, gpu", sorted(
    {tuple(row[:4]) for row in ROWS}, key=str))
def test_names_and_classes_are_the_engine_s(
    engine: str, version: str, platform: str, gpu: str | None
) -> None:
    for *question, config, asked, answer in ROWS:
        if question != [engine, version, platform, gpu]:
            continue
        got = ask(platform, CONFIGS.get(config), engine, engine_version=version, gpu=gpu,
                  quantization=asked).trace
        name, last = answer if isinstance(answer, list) else (answer, "")
        refusal = last or name or ""
        if ": " in refusal:
            assert got.error is not None
            kind = got.error.type.replace("ValidationError", "ValueError")
            assert f"{kind}: {got.error.message}" == refusal, (config, asked)
        elif got.error is not None:
            assert got.error.stage in AFTER_THE_NAME, (config, asked)
        else:
            assert got.method.resolved == name, (config, asked)
            assert not last or got.method.config_class == last, (config, asked)


def test_the_seven_methods_of_a_cpu() -> None:
    """layers/quantization/__init__.py:CPU_QUANTIZATION_METHODS."""
    trace = ask("cpu").trace
    assert {s.id for s in trace.states if s.state == "accepted"} == {
        "fp8", "w8a8_int8", "compressed-tensors", "awq", "gptq", "mxfp4", "auto-round"}
    assert {s.config_class for s in trace.states if s.id in ("awq", "gptq")} == {
        "AWQCPUConfig", "CPUGPTQConfig"}


@pytest.mark.parametrize("platform, gpu, unregistered", [
    ("rocm", "gfx942", {"gptq", "mxfp4", "mlx_q4", "mlx_q8"}),
    ("rocm", "gfx950", {"gptq", "mlx_q4", "mlx_q8"}), ("npu", None, {"mlx_q4", "mlx_q8"}),
    ("xpu", None, {"mlx_q4", "mlx_q8"}), ("cpu", None, {"mlx_q4", "mlx_q8"}),
])
def test_what_a_platform_does_not_register(
    platform: str, gpu: str | None, unregistered: set[str]
) -> None:
    """Of arg_groups/choices.py:QUANTIZATION_CHOICES."""
    trace = ask(platform, gpu=gpu).trace
    assert {s.id for s in trace.states if s.state == "not registered"} == unregistered


@pytest.mark.parametrize("platform, config, message", [
    ("rocm", "awq", "torch.bfloat16 is not supported for quantization method awq. Supported dtypes:"
                    " [torch.float16]"),
    ("cpu", "awq", None), ("xpu", "awq", None), ("npu", "awq", None), ("xpu", "gptq", None),
])
def test_bfloat16_models_of_awq_and_gptq(
    platform: str, config: str, message: str | None
) -> None:
    """layers/quantization/awq/awq.py and gptq/gptq.py: get_supported_act_dtypes."""
    error = ask(platform, CONFIGS[config], dtype="bfloat16").trace.error
    assert (error and error.message) == message


@pytest.mark.parametrize("gpu, minimum", [
    ("gfx90a", 100), ("gfx942", None), ("gfx950", None), ("MI300X", None), (None, None)])
def test_the_least_capability_is_asked_of_a_named_gpu(gpu: str | None, minimum: int | None) -> None:
    """layers/quantization/fp8.py:Fp8Config.get_min_capability for mxfp8 on ROCm."""
    error = ask("rocm", quantization="mxfp8", gpu=gpu).trace.error
    if minimum is None:
        assert error is None
    else:
        assert error is not None
        assert f"Minimum capability: {minimum}. Current capability: 90." in error.message


@pytest.mark.parametrize("engine, platform, gpu, dtype", [
    ("sglang", "rocm", "gfx942", "float8_e4m3fnuz"), ("sglang", "rocm", "gfx950", "float8_e4m3fn"),
    ("vllm", "rocm", "mi325x", "float8_e4m3fnuz"), ("vllm", "rocm", "gfx1201", "float8_e4m3fn"),
    ("vllm", "rocm", None, None), ("vllm", "xpu", None, "float8_e4m3fn"),
    ("sglang", "cpu", None, "float8_e4m3fn"),
])
def test_fp8_is_fnuz_on_gfx94x(
    engine: str, platform: str, gpu: str | None, dtype: str | None
) -> None:
    """platforms/rocm.py:RocmPlatform.fp8_dtype; kernels/ops/quantization/fp8_kernel.py."""
    assert ask(platform, engine=engine, gpu=gpu).trace.place.fp8_dtype == dtype


@pytest.mark.parametrize("platform, gpu, asked, resolved", [
    ("rocm", "gfx942", "fp8_e5m2", "float8_e4m3fnuz"),
    ("rocm", "gfx942", "fp8_e4m3", "float8_e4m3fnuz"),
    ("rocm", None, "fp8_e4m3", None), ("xpu", None, "fp8_e5m2", "float8_e5m2"),
    ("npu", None, "fp8_e4m3", "float8_e4m3fn"), ("cpu", None, "bf16", "bfloat16"),
    ("cpu", None, "auto", "float16"),
])
def test_the_kv_cache_s_dtype(
    platform: str, gpu: str | None, asked: str, resolved: str | None
) -> None:
    """mem_cache/kv_cache_dtype.py:configure_kv_cache_dtype."""
    assert ask(platform, gpu=gpu, kv_cache_dtype=asked).trace.kv_cache["resolved"] == resolved


def test_a_kv_cache_dtype_that_the_cpu_refuses() -> None:
    """mem_cache/kv_cache_dtype.py:configure_kv_cache_dtype."""
    error = ask("cpu", kv_cache_dtype="fp8_e5m2").trace.error
    assert error is not None
    assert (error.type, error.message) == (
        "ValueError", "--kv-cache-dtype fp8_e5m2 is not supported on CPU.")


def group(bits: int, kind: str, strategy: str, inputs: bool, form: str) -> dict[str, Any]:
    """Return a compressed-tensors config of one group."""
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": weights, "input_activations": weights if inputs else None,
    }}}


@pytest.mark.parametrize("platform, quant, kernels", [
    ("cpu", CONFIGS["fp8_block"], ["CPUFp8W8A8BlockScaledMMKernel", "CPUFp8BlockScaledMMKernel"]),
    ("rocm", CONFIGS["fp8_block"], ["AiterFp8BlockScaledMMKernel", "TritonFp8BlockScaledMMKernel"]),
    ("xpu", CONFIGS["awq"], ["XPUW4A8IntLinearKernel", "XPUwNa16LinearKernel"]),
    ("cpu", CONFIGS["awq"], ["Dynamic4bitLinearKernel", "ZentorchWNA16LinearKernel",
                             "CPUWNA16LinearKernel"]),
    ("rocm", CONFIGS["awq"], None),
    ("rocm", group(8, "int", "channel", True, "int-quantized"),
     ["AiterInt8ScaledMMLinearKernel", "TritonInt8ScaledMMLinearKernel"]),
    ("xpu", group(8, "float", "channel", True, "float-quantized"), ["XPUW8A16FP8LinearKernel"]),
    ("cpu", group(8, "float", "channel", False, "float-quantized"), []),
    ("rocm", group(4, "int", "group", False, "pack-quantized"),
     ["RDNA3W4A16LinearKernel", "RDNAHybridW4A16LinearKernel", "TritonW4A16LinearKernel",
      "ConchLinearKernel", "ExllamaLinearKernel"]),
])
def test_vllm_s_lists(platform: str, quant: Any, kernels: list[str] | None) -> None:
    """model_executor/kernels/linear/__init__.py of 0.32.0."""
    lists = ask(platform, quant, "vllm").trace.lists
    assert [[c["id"] for c in part["candidates"]] for part in lists] == (
        [] if kernels is None else [kernels])


@pytest.mark.parametrize("version, platform, refused, kernels", [
    ("0.33.0", "cpu", set(), ["CPUFP8W8A8ScaledMMLinearKernel",
                              "CPUFp8PerTensorScaledMMLinearKernel",
                              "CPUFp8ChannelWiseScaledMMLinearKernel",
                              "PerTensorTorchFP8ScaledMMLinearKernel",
                              "ChannelWiseTorchFP8ScaledMMLinearKernel"]),
    ("0.25.1", "cpu", set(), ["PerTensorTorchFP8ScaledMMLinearKernel",
                              "ChannelWiseTorchFP8ScaledMMLinearKernel"]),
    ("0.25.1", "xpu", set(), ["XPUW8A16FP8LinearKernel", "XPUW8A8FP8LinearKernel"]),
    ("0.25.1", "rocm", {"fp_quant", "gptq_marlin", "humming", "experts_int8", "moe_wna16", "inc",
                        "int8_per_channel_weight_only"},
     ["AiterHipbMMPerTokenFp8ScaledMMLinearKernel",
      "AiterPreshuffledPerTokenFp8ScaledMMLinearKernel",
      "AiterPerTokenFp8ScaledMMLinearKernel", "ROCmFP8ScaledMMLinearKernel",
      "PerTensorTorchFP8ScaledMMLinearKernel", "RowWiseTorchFP8ScaledMMLinearKernel",
      "ChannelWiseTorchFP8ScaledMMLinearKernel"]),
])
def test_versions_of_vllm_differ(
    version: str, platform: str, refused: set[str], kernels: list[str]
) -> None:
    """platforms/*.py:supported_quantization and _POSSIBLE_FP8_KERNELS of that version."""
    trace = ask(platform, CONFIGS["fp8"], "vllm", engine_version=version).trace
    assert {s.id for s in trace.states if s.state == "refused"} == refused
    assert [[c["id"] for c in part["candidates"]] for part in trace.lists] == [kernels]


@pytest.mark.parametrize("platform, engine, options, error", [
    ("npu", "vllm", {}, NotKnownError), ("cpu", "vllm", {"gpu": "gfx942"}, UsageError),
    ("rocm", "vllm", {"gpu": "h100"}, UsageError), ("tpu", "vllm", {}, UsageError),
    ("rocm", "vllm", {"linear_backend": "triton"}, NotKnownError),
    ("rocm", "vllm", {"kv_cache_dtype": "nvfp4"}, NotKnownError),
    ("rocm", "sglang", {"libs": {"flashinfer": False}}, NotKnownError),
])
def test_questions_that_have_no_answer(
    platform: str, engine: str, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        ask(platform, engine=engine, **options)


def test_an_option_that_is_none() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        ask("rocm", colour="red")
