"""Which optional packages vLLM asks for, and what of them is real."""

from __future__ import annotations

from collections.abc import Mapping

from quantplan.oracle.worker.packages import Shelf

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "flashinfer_installed": ("flashinfer",),
    "flashinfer": ("flashinfer_cubin",),
    "deep_gemm": ("deep_gemm", "vllm.third_party.deep_gemm"),
    "humming": ("humming",),
    "cutedsl": ("cutlass",),
    "flash_attn_4": ("vllm.vllm_flash_attn.cute",),
    **{name: (name,) for name in (
        "triton_kernels", "tilelang", "quack", "tokenspeed_mla", "conch", "b12x", "fbgemm_gpu",
        "quark", "torchao", "deep_ep", "helion", "aiter", "bitsandbytes")},
}
"""Library -> the packages that it is. FlashInfer's kernels make flashinfer-python usable."""

UNSAID: Mapping[str, str | None] = {
    "flashinfer_installed": "flashinfer", "quack": None, "tokenspeed_mla": None,
    "flash_attn_4": None}
"""Libraries that a question need not name -> the library that brings them along; None: the wheel's
metadata requires them."""

USED_FOR_REAL = ("humming",)
"""Libraries whose own code answers for the mode of a kernel; others need no more than a name."""


def vllm_shelf() -> Shelf:
    """Return the shelf of vLLM's optional packages."""
    return Shelf(PACKAGES, UNSAID, USED_FOR_REAL)
