"""Routed experts of 4 bits in FP8 checkpoints: packed MXFP4, or NVFP4 of a hybrid config
(layers/quantization/fp8.py:Fp8Config.get_quant_method,
layers/quantization/modelopt_quant.py:HybridFp8NvFp4Config)."""

from __future__ import annotations

from quantplan.dispatch.sglang.context import Assignment, Context, Site
from quantplan.dispatch.sglang.experts import Experts
from quantplan.dispatch.trace import refuse
from quantplan.tables.errors import NotKnownError

CUTLASS = "layers/quantization/mxfp4_flashinfer_cutlass_moe.py:Mxfp4FlashinferCutlassMoEMethod"
TILE = 128
"""What FlashInfer's CUTLASS kernel wants the sizes of an expert to be multiples of."""
TRTLLM_FAMILY = 100


def packed_experts(context: Context, site: Site, held: Experts) -> Assignment | None:
    """Return the assignment of packed MXFP4 where it is not Fp8MoEMethod's. Raises NotKnownError
    for backends that are not in the table."""
    backend, family = context.facts["moe.backend"], context.facts["gpu.family"]
    if backend in ("auto", "triton"):
        return None
    if backend != "flashinfer_mxfp4":
        raise NotKnownError(f"packed MXFP4 experts with --moe-backend {context.facts['moe.named']}",
                            wanted="auto or triton", hint="Drop --moe-backend.")
    if family == TRTLLM_FAMILY:
        return Assignment("Mxfp4FlashinferTrtllmMoEMethod", operators="experts_packed_trtllm")
    if held.hidden % TILE or held.intermediate % TILE:
        raise refuse("shapes under TP", "ValueError", "Mxfp4FlashinferCutlassMoEMethod requires "
                     "hidden_size and intermediate_size_per_partition to be multiples of 128 (got "
                     f"hidden={held.hidden}, intermediate={held.intermediate}).", site.path,
                     f"{CUTLASS}.create_weights", hint="Use fewer tensor parallel ranks.")
    return Assignment("Mxfp4FlashinferCutlassMoEMethod", operators="experts_packed_cutlass")
