"""Experts of ModelOpt checkpoints (model_executor/layers/quantization/modelopt.py)."""

from __future__ import annotations

from functools import partial

from quantplan.dispatch.vllm.experts.fp8 import block_plan, tensor_plan
from quantplan.dispatch.vllm.experts.ignore import experts_skipped
from quantplan.dispatch.vllm.experts.mxfp8 import check_mxfp8
from quantplan.dispatch.vllm.experts.plan import NO_KEY, Experts, Plan, unquantized
from quantplan.dispatch.vllm.modelopt import ModelOptFields, algo_of, codec_of

SOURCE = "model_executor/layers/quantization/modelopt.py"
BLOCK_ALIGNMENT = 128
"""modelopt_block_quant.py:ModelOptBlockQuantMoEMethod.maybe_roundup_sizes."""


def plan(fields: ModelOptFields, experts: Experts) -> Plan:
    """Return the plan of experts in a ModelOpt checkpoint."""
    if experts_skipped(experts, fields.excluded):
        return unquantized("named in the excluded modules")
    algo, why = algo_of(fields, experts.context, experts.prefix)
    if algo is None:
        return unquantized(why)
    rules = experts.context.table["modelopt"]
    if fields.mixed is not None and algo in rules["block_algos"]:
        size = fields.mixed.block_size
        return block_plan("Fp8MoEMethod", (size, size), experts)
    codec = codec_of(experts.context, algo)
    if codec:
        return Plan("ModelOptBlockQuantMoEMethod", "packed_blocks", "packed_blocks", quant={
            "quant.codec": algo.upper(), "quant.bits": codec["bytes"] * 8 // codec["block"],
            "quant.alignment": max(BLOCK_ALIGNMENT, codec["block"])})
    found = PLANS.get(algo)
    if found is None and fields.mixed is None:
        found = PLANS["FP8"]
    return found or unquantized(f"{algo} is no algorithm of experts")


PLANS = {
    "FP8": tensor_plan("ModelOptFp8MoEMethod", "kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    "NVFP4": Plan("ModelOptNvFp4FusedMoE", "nvfp4", "kNvfp4Static", "kNvfp4Dynamic"),
    "W4A16_NVFP4": Plan("ModelOptNvFp4FusedMoE", "nvfp4", "kNvfp4Static", NO_KEY),
    "MXFP8": Plan("ModelOptMxFp8FusedMoE", "mxfp8", "kMxfp8Static", "kMxfp8Dynamic",
                  after=partial(check_mxfp8, f"{SOURCE}:ModelOptMxFp8FusedMoE")),
}
"""quant_algo -> plan; the config class of one FP8 algorithm serves experts of all as FP8."""
