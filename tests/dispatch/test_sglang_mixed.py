"""ModelOpt MIXED_PRECISION on SGLang 0.5.22: answers of the engine for a dense model whose layers
have six algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.dispatch.test_sglang_nvfp4 import ask

FIRST, SECOND = "model.layers.0", "model.layers.1"
ALGOS: Mapping[str, str] = {
    **{f"{FIRST}.self_attn.{name}_proj": "FP8" for name in ("q", "k", "v", "qkv")},
    f"{FIRST}.self_attn.o_proj": "FP8_PB_WO", f"{FIRST}.mlp.gate_up_proj": "MXFP8",
    f"{FIRST}.mlp.down_proj": "NVFP4", f"{SECOND}.self_attn": "NVFP4",
    f"{SECOND}.self_attn.o_proj": "W4A16_NVFP4", f"{SECOND}.mlp.down_proj.x": "NVFP4",
    "lm_head": "NVFP4"}


def mixed(algos: Mapping[str, str] = ALGOS, **more: Any) -> dict[str, Any]:
    """Return a quantization_config of these algorithms."""
    layers = {name: {"quant_algo": algo} for name, algo in algos.items()}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": "FP8", "exclude_modules": [], "quantized_layers": layers, **more}


def kernels(config: Mapping[str, Any], capability: int, **options: Any) -> dict[str, Any]:
    """Return what each row of layers calls; those of the same name stand in order."""
    found: dict[str, list[str]] = {}
    for layer in ask(config, capability, **options)["layers"]:
        if layer.get("kernel"):
            found.setdefault(layer["path"].rsplit(".", 1)[-1], []).append(layer["kernel"])
    return {name: tuple(kernels) for name, kernels in found.items()}


MARLIN8, MARLIN4, NATIVE = "apply_fp8_marlin_linear", "apply_fp4_marlin_linear", "fp4_gemm"
FLASHINFER = "flashinfer_mxfp8_blockscaled_linear"


@pytest.mark.parametrize("capability, qkv, o, up, down", [
    (80, MARLIN8, MARLIN8, MARLIN8, MARLIN4),
    (89, "fp8_scaled_mm", "w8a8_block_fp8_matmul_triton", "none", MARLIN4),
    (90, "flashinfer_bmm_fp8", "w8a8_block_fp8_matmul_deepgemm", "w8a8_mxfp8_matmul_deepgemm",
     MARLIN4),
    (100, "flashinfer_bmm_fp8", "w8a8_block_fp8_matmul_deepgemm", FLASHINFER, NATIVE),
    (120, "flashinfer_bmm_fp8", "fp8_blockwise_scaled_mm", FLASHINFER, NATIVE),
])
def test_six_algorithms(capability: int, qkv: str, o: str, up: str, down: str) -> None:
    assert kernels(mixed(), capability, sizes={"num_hidden_layers": 2}) == {
        "qkv_proj": (qkv, "torch.mm"), "o_proj": (o, MARLIN4), "gate_up_proj": (up, "torch.mm"),
        "down_proj": (down,), "lm_head": (down,)}


@pytest.mark.parametrize("algo, capability, kernel", [
    ("FP8", 80, MARLIN8), ("MXFP8", 90, "w8a8_mxfp8_matmul_deepgemm"),
    ("FP8_PB_WO", 120, "fp8_blockwise_scaled_mm"), ("W4A16_NVFP4", 100, MARLIN4)])
def test_lm_head(algo: str, capability: int, kernel: str) -> None:
    config = mixed({**ALGOS, "lm_head": algo})
    assert kernels(config, capability)["lm_head"] == (kernel,)


def test_mxfp8_without_an_operator_is_told() -> None:
    """fp8_utils.py:_unsupported_mxfp8_linear."""
    findings = {finding["id"] for finding in ask(mixed(), 89)["findings"]}
    assert "no-operator" in findings


@pytest.mark.parametrize("config, message", [
    ({key: value for key, value in mixed().items() if key != "kv_cache_quant_algo"},
     "Cannot find the config file for modelopt_mixed"),
    (mixed(quantized_layers={**mixed()["quantized_layers"],
                             "a": {"quant_algo": "FP8_PB_WO", "group_size": 64}}),
     "MIXED_PRECISION currently requires all block-FP8 layers to use one group_size, "
     "got [64, 128]."),
])
def test_refusals(config: Mapping[str, Any], message: str) -> None:
    assert ask(config, 90)["error"]["message"] == message


def test_the_file_beside_stands_in() -> None:
    bare = {key: value for key, value in mixed().items() if key != "kv_cache_quant_algo"}
    answer = ask(bare, 90, side_files={"hf_quant_config.json": {
        "producer": {"name": "modelopt"}, "quantization": mixed()}})
    assert answer["kv_cache"]["resolved"] == "float8_e4m3fn"


def test_names_in_the_excluded_modules_go_first() -> None:
    found = kernels(mixed(exclude_modules=["lm_head", f"{FIRST}*"]), 90,
                    sizes={"num_hidden_layers": 2})
    assert (found["lm_head"], found["o_proj"]) == (("torch.mm",), ("torch.mm", MARLIN4))
