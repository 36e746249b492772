"""The kernel lists of vLLM 0.32.0, and the facts of one layer to walk them with."""

from __future__ import annotations

from typing import Any

from quantplan.dispatch.candidates import walk
from quantplan.dispatch.trace import Selection
from quantplan.tables.engine_loading import load_engine

TABLE = load_engine("vllm", "0.32.0")

# The lists of kernels/linear/__init__.py for CUDA: _POSSIBLE_FP8_KERNELS and its neighbours.
LISTS = {
    "fp8_w8a8": [
        "FlashInferFP8ScaledMMLinearKernel", "CutlassFP8ScaledMMLinearKernel",
        "B12xTensorFP8ScaledMMLinearKernel", "PerTensorTorchFP8ScaledMMLinearKernel",
        "ChannelWiseTorchFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel",
        "HummingFP8ScaledMMLinearKernel"],
    "fp8_block_w8a8": [
        "FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "DeepGemmFp8BlockScaledMMKernel",
        "CutlassFp8BlockScaledMMKernel", "B12xFp8BlockScaledMMKernel",
        "MarlinFP8ScaledMMLinearKernel", "HummingFP8ScaledMMLinearKernel",
        "TritonFp8BlockScaledMMKernel", "BlockWiseTorchFP8ScaledMMLinearKernel"],
    "w8a16_fp8": ["HummingFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel"],
    "int8_w8a8": ["CutlassInt8ScaledMMLinearKernel", "TritonInt8ScaledMMLinearKernel",
                  "HummingInt8ScaledMMLinearKernel"],
    "mixed_precision": [
        "CutlassW4A8LinearKernel", "MacheteLinearKernel", "MarlinLinearKernel",
        "ConchLinearKernel", "ExllamaLinearKernel", "TritonW4A16LinearKernel",
        "HummingLinearKernel"],
    "mxfp8": [
        "FlashInferCutedslMxfp8LinearKernel", "FlashInferCutlassMxfp8LinearKernel",
        "MarlinMxfp8LinearKernel", "B12xMxfp8LinearKernel", "EmulationMxfp8LinearKernel",
        "HummingMxfp8LinearKernel", "FlashInferTrtllmMxfp8LinearKernel"],
    "mxfp6": ["HummingMxFp6LinearKernel", "EmulationMxfp6LinearKernel"],
    "mxfp4": [
        "FlashInferMxFp4LinearKernel", "MarlinMxFp4LinearKernel", "HummingMxFp4LinearKernel",
        "B12xMxFp4LinearKernel", "EmulationMxfp4LinearKernel"],
    "nvfp4_w4a4": [
        "FlashInferCuteDslNvFp4LinearKernel", "FlashInferCutlassNvFp4LinearKernel",
        "FlashInferB12xNvFp4LinearKernel", "CutlassNvFp4LinearKernel",
        "FlashInferCuteDslNvFp4W4A16LinearKernel", "MarlinNvFp4LinearKernel",
        "FlashInferTrtllmNvFp4LinearKernel", "FlashInferCudnnNvFp4LinearKernel",
        "FbgemmNvFp4LinearKernel", "B12xNvFp4LinearKernel", "B12xNvFp4W4A16LinearKernel",
        "TorchNvFp4LinearKernel", "EmulationNvFp4LinearKernel", "HummingNvFp4LinearKernel"],
    "nvfp4_w4a16": [
        "FlashInferCuteDslNvFp4W4A16LinearKernel", "MarlinNvFp4LinearKernel",
        "B12xNvFp4W4A16LinearKernel", "HummingNvFp4LinearKernel"],
}

FP8 = {"quant.weight_scale": "tensor", "quant.act_scale": "token", "quant.act_static": False}
BLOCK = {"quant.weight_scale": "block128x128", "quant.act_scale": "group128",
         "quant.act_static": False}
INT4 = {
    "quant.weight_type": "uint4b8", "quant.bits": 4, "quant.group_size": 128,
    "quant.zero_points": False, "quant.act_type": "bfloat16", "quant.act_mode": "16",
    "quant.pack_factor": 8, "quant.channelwise": False, "quant.grouped": True,
    "quant.group_is_full_k": False, "quant.act_key": "none", "quant.act_group": 0,
}
MXFP4 = {"quant.act_key": "mxfp4", "quant.act_group": 32, "quant.act_text": "QuantKey(...)"}
QUANT: dict[str, dict[str, Any]] = {
    "fp8_w8a8": FP8, "fp8_block_w8a8": BLOCK, "w8a16_fp8": FP8, "int8_w8a8": {},
    "mixed_precision": INT4, "mxfp8": {}, "mxfp4": MXFP4,
    "mxfp6": {**MXFP4, "quant.weight_type": "float6e3m2"},
    "nvfp4_w4a4": {"quant.weight_only": False}, "nvfp4_w4a16": {"quant.weight_only": True}}


def facts(family: str, capability: int, **changes: Any) -> dict[str, Any]:
    """Return the facts of Llama-3.1-8B's qkv_proj for a family; names with __ for dots change."""
    found: dict[str, Any] = {
        "gpu.capability": capability, "gpu.family": capability // 10 * 10, "gpu.name": "GPU",
        "gpu.capability_text": f"{capability // 10}.{capability % 10}",
        "gpu.below_80": capability < 80, "gpu.fp8_tensor_cores": capability >= 89,
        "gpu.prefers_humming": capability == 90, "flag.linear_backend": "auto",
        "dtype.model": "bfloat16", "model.type": "llama",
        "layer.n": 6144, "layer.k": 4096, "layer.n_full": 6144, "layer.k_full": 4096,
        "env.VLLM_DISABLED_KERNELS": (), "env.VLLM_BATCH_INVARIANT": False,
        "env.VLLM_USE_DEEP_GEMM": True, "env.VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": True,
        "env.VLLM_MARLIN_INPUT_DTYPE": None,
        **{f"lib.{name}": row["default"] for name, row in TABLE["libraries"].items()},
        **QUANT[family],
    }
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    assert set(changes) <= set(found)
    found.update(changes)
    words = f"--linear-backend {found['flag.linear_backend']}"
    return {**found, "flag.linear_backend_words": words}


def select(family: str, capability: int, **changes: Any) -> Selection:
    return walk(TABLE, family, facts(family, capability, **changes))


def rejected(selection: Selection) -> dict[str, str | None]:
    """Return the kernels that the engine looked at and turned down -> its words."""
    return {candidate.kernel: candidate.reason for candidate in selection.rejected}
