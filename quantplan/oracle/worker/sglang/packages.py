"""Packages that SGLang imports and that stand in for themselves here: compiled kernels, and what
its server needs beside them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

from quantplan.oracle.worker.packages import Shelf
from quantplan.oracle.worker.sglang.kernels import KernelModule

KERNELS = ("sgl_kernel", "flashinfer", "deep_gemm", "flash_attn", "sgl_flash_attn", "humming",
           "triton_kernels", "bitsandbytes", "tilelang", "quack", "cutlass", "cuda", "cuda_tile",
           "tvm_ffi", "nvshmem", "deep_ep", "tokenspeed_mla", "kt_kernel", "kernels", "nvmath",
           "cupy", "numba", "llvmlite")
"""Packages of kernels and of their compilers."""

OTHERS = ("torchvision", "torchaudio", "torchcodec", "xgrammar", "outlines", "llguidance", "decord",
          "IPython", "torch_memory_saver", "modelscope", "mistral_common", "openai_harmony",
          "soundfile", "timm", "datasets", "blobfile", "av", "smg_grpc_servicer", "anthropic",
          "opentelemetry", "mooncake", "gradio", "ray")
"""Packages that decide no kernel."""

ASKED_FOR = ("cudnn", "hpc")
"""Packages that are there only where a question says so."""

PACKAGES: Mapping[str, tuple[str, ...]] = {
    name: (name,) for name in (*KERNELS, *OTHERS, *ASKED_FOR)}
"""Library -> the packages that it is."""

USED_FOR_REAL = ("humming",)
"""Packages whose own code says what a layer becomes; it is used where it is importable."""

TURNED_OFF_BY: Mapping[str, str] = {"flashinfer": "SGLANG_IS_FLASHINFER_AVAILABLE"}
"""Library -> the variable that takes it away: without its package the engine cannot be imported
(layers/quantization/fp8_utils.py)."""

ENGINE = "sglang"


def sglang_shelf() -> Shelf:
    """Return a shelf on which everything is present that a question does not take away, and what it
    adds."""
    return Shelf(PACKAGES, dict.fromkeys((*KERNELS, *OTHERS)), USED_FOR_REAL, KernelModule)


def hide_from_others(shelf: Shelf) -> None:
    """Let only the engine see that the stand-ins are there: other packages look for optional ones
    and would go on to use them."""
    find = importlib.util.find_spec
    vars(importlib.util)["find_spec"] = _seen_by_the_engine(find, shelf)


def _seen_by_the_engine(find: Callable[..., Any], shelf: Shelf) -> Callable[..., Any]:
    def find_spec(name: str, package: str | None = None) -> Any:
        asking = str(sys._getframe(1).f_globals.get("__name__", "")).split(".")[0]
        if shelf.library_of(name) is not None and asking != ENGINE:
            return None
        return find(name, package)
    return find_spec
