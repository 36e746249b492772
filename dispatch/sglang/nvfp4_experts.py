"""Routed experts of ModelOpt NVFP4 checkpoints
(layers/quantization/modelopt_quant.py:ModelOptNvFp4FusedMoEMethod)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import BLACKWELL, Assignment, Context, Site
from quantplan.dispatch.sglang.experts import PADDED_UNDER, Experts
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

SOURCE = "layers/quantization/modelopt_quant.py:ModelOptNvFp4FusedMoEMethod"
ROWS = 128
"""Rows to which swizzled block scales are padded."""


def nvfp4_experts(context: Context, site: Site, held: Experts) -> Assignment:
    """Return the assignment, or refuse as the method does. Raises NotKnownError for backends whose
    runner NVFP4 weights are not made for, and for expert parallel ranks on 11.0 and above."""
    backend, new = context.facts["moe.backend"], context.gpu.capability >= BLACKWELL
    if not new and backend not in ("auto", "marlin"):
        raise refuse("kernel selection", "ValueError", "Current platform does not support NVFP4 "
                     "quantization with the selected MoE backend. Please use Blackwell and above, "
                     "or use moe_runner_backend=marlin on SM80+.", site.path, f"{SOURCE}.__init__",
                     hint="Drop --moe-backend, or pass marlin.")
    if backend == "cutlass":
        raise refuse("kernel selection", "NotImplementedError", "moe_runner_backend=cutlass is not "
                     "supported for NVFP4 MoE. Use --moe-runner-backend flashinfer_cutlass "
                     "instead.", site.path, f"{SOURCE}.create_moe_runner",
                     hint="Pass --moe-backend flashinfer_cutlass.")
    if backend in UNMADE or (new and backend not in ("marlin", *PADDED_UNDER)
                             and context.deployment.expert_parallel):
        raise NotKnownError(f"SGLang's NVFP4 experts with --moe-backend {backend} here",
                            hint="Drop --moe-backend or expert parallelism.")
    padded = new and backend not in ("marlin", *PADDED_UNDER) and 2 * held.intermediate % ROWS
    refusal = refuse("weight loading", "AssertionError", "The intermediate size required padding, "
                     "but padding is also implemented for gated activations", site.path,
                     f"{SOURCE}.process_weights_after_loading",
                     hint="Use fewer tensor parallel ranks.") if padded else None
    return Assignment("ModelOptNvFp4FusedMoEMethod", operators="experts_nvfp4", refusal=refusal)


UNMADE = ("triton", "triton_kernel", "deep_gemm")
