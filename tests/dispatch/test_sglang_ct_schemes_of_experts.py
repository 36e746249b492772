"""Routed experts of compressed-tensors, GGUF and ModelOpt FP8 checkpoints under SGLang, each with
the engine's own answer to the config given here."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import explain
from tests.dispatch.test_sglang_golden import named

MOE = named("qwen3_30b_a3b|none|sm90")["case"]["config"]
EXPERTS = "model.layers.*.mlp.experts"


def args(bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True,
            "dynamic": False, **more}


TOKEN = args(8, "int", "token") | {"dynamic": True}
TOKEN_FP8 = TOKEN | {"type": "float"}
CHECKPOINTS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "int4": ("pack-quantized", args(4, "int", "group", group_size=128), None),
    "int3": ("pack-quantized", args(3, "int", "group", group_size=128), None),
    "w4afp8": ("pack-quantized", args(4, "int", "group", group_size=128), TOKEN_FP8),
    "w4a8": ("int-quantized", args(4, "int", "channel"), TOKEN),
    "nvfp4": ("nvfp4-pack-quantized", args(4, "float", "tensor_group", group_size=16),
              args(4, "float", "tensor_group", group_size=16) | {"dynamic": "local"}),
    "mxfp4": ("mxfp4-pack-quantized", args(4, "float", "group", group_size=32), None),
    "fp8": ("float-quantized", args(8, "float", "channel"), TOKEN_FP8),
    "fp8_w": ("float-quantized", args(8, "float", "channel"), None),
}


def answer(name: str, backend: str | None, capability: int, version: str) -> dict[str, Any]:
    layout, weights, inputs = CHECKPOINTS[name]
    quantized = {"quant_method": "compressed-tensors", "format": layout,
                 "ignore": ["lm_head", "re:.*self_attn.*"],
                 "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                               "input_activations": inputs}}}
    more: dict[str, Any] = {} if backend is None else {"moe_backend": backend}
    return explain({**MOE, "quantization_config": quantized}, engine="sglang",
                   engine_version=version, capability=capability, **more).to_dict()


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
@pytest.mark.parametrize("asked, found", [
    (("int4", "triton", 90), ("CompressedTensorsWNA16TritonMoE", "triton")),
    (("int4", "deep_gemm", 90), ("CompressedTensorsWNA16MoE", "marlin")),
    (("w4afp8", None, 90), ("CompressedTensorsW4AFP8MoE", None)),
    (("nvfp4", None, 100), ("CompressedTensorsW4A4Nvfp4MoE", "flashinfer_cutlass")),
    (("nvfp4", "flashinfer_trtllm", 100), ("CompressedTensorsW4A4Nvfp4MoE", "flashinfer_trtllm")),
    (("nvfp4", None, 90), ("CompressedTensorsW4A16Nvfp4MoE", "marlin")),
    (("mxfp4", None, 75), (None, "triton")),
    (("mxfp4", "deep_gemm", 100), (None, "deep_gemm")),
    (("fp8", "flashinfer_trtllm", 100), ("CompressedTensorsW8A8Fp8MoE", "flashinfer_trtllm")),
    (("fp8", "marlin", 90), ("CompressedTensorsW8A8Fp8MoE", None)),
])
def test_the_scheme(
    asked: tuple[str, str | None, int], found: tuple[str | None, str | None], version: str
) -> None:
    layers = {x["path"]: x for x in answer(*asked, version)["layers"]}
    assert (layers[EXPERTS]["scheme"], layers[EXPERTS]["moe_runner_backend"]) == found


@pytest.mark.parametrize("name, backend, kind, message", [
    ("int3", None, "ValueError", "('For Fused MoE layers, only ', 'pack-quantized ', 'is supported "
     "for the following bits: ', '[4, 8]')"),
    ("w4a8", None, "NotImplementedError", "The W4A8Int8 Fused MoE scheme is implemented only for "
     "NPU for now."),
    ("fp8_w", None, "AttributeError", "'NoneType' object has no attribute 'num_bits'"),
    ("mxfp4", "cutlass", "NotImplementedError", "Mxfp4MoEMethod has no MoeRunner for "
     "backend=MoeRunnerBackend.CUTLASS / _fi_kernel=None."),
])
def test_the_refusal(name: str, backend: str | None, kind: str, message: str) -> None:
    error = answer(name, backend, 90, "0.5.22")["error"]
    assert (error["type"], error["message"]) == (kind, message)


def test_qwen3_attention_reads_no_scales() -> None:
    """Its class builds attention without the quantization config, so Quark's check is not made."""
    fp8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True,
           "observer_cls": "PerTensorMinMaxObserver", "ch_axis": None, "group_size": None}
    group = {"weight": fp8, "input_tensors": fp8, "output_tensors": None, "bias": None}
    quark = {"quant_method": "quark", "exclude": ["lm_head"], "layer_type_quant_config": {},
             "export": {"kv_cache_group": ["*k_proj"], "pack_method": "reorder"},
             "layer_quant_config": {"*k_proj": {**group, "output_tensors": {**fp8,
                                                                           "dtype": "int8"}}},
             "global_quant_config": group}
    llama = named("llama8b|w4afp8|sm90")["case"]["config"]
    errors = [explain({**config, "quantization_config": quark}, engine="sglang",
                      engine_version="0.5.22", capability=90).to_dict()["error"]
              for config in (MOE, llama)]
    assert errors[0] is None
    assert errors[1]["message"].startswith("Currently supported kv cache quantization is")
