"""Methods that quantize no experts, and experts of DeepSeek V4
(model_executor/layers/quantization/fbgemm_fp8.py, fp_quant.py, torchao.py;
models/deepseek_v41/quant_config.py)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from quantplan.dispatch.trace import refuse
from quantplan.dispatch.vllm import deepseek_v4
from quantplan.dispatch.vllm.experts import fp8
from quantplan.dispatch.vllm.experts.ignore import experts_skipped
from quantplan.dispatch.vllm.experts.modelopt import PLANS
from quantplan.dispatch.vllm.experts.mxfp4 import MXFP4
from quantplan.dispatch.vllm.experts.plan import Experts, Plan, unquantized
from quantplan.dispatch.vllm.fp8 import Fp8Fields
from quantplan.dispatch.vllm.fp_quant import FpQuantFields
from quantplan.dispatch.vllm.quant_config import quantization_config


def unserved(fields: Any, experts: Experts) -> Plan:
    """Return the plan of experts that a method leaves alone."""
    return unquantized("this method quantizes linear layers only")


def fp_quant(fields: FpQuantFields, experts: Experts) -> Plan:
    """Return the plan of experts under fp_quant, which takes skipped ones for linear layers."""
    if any(experts.prefix.endswith(name) for name in fields.skipped):
        raise refuse("layer assignment", "AssertionError", "", experts.prefix,
                     "model_executor/layers/fused_moe/routed_experts.py:RoutedExperts",
                     hint="Remove the experts from modules_to_not_convert: they stay in 16 bits "
                     "anyway.")
    return unserved(fields, experts)


def deepseek(fields: Fp8Fields, experts: Experts) -> Plan:
    """Return the plan of experts in a DeepSeek V4 checkpoint, by its expert_dtype."""
    if experts_skipped(experts, fields.ignored):
        return unquantized("named in ignored_layers")
    if deepseek_v4.expert_dtype(experts.context, experts.prefix) != "fp4":
        return fp8.plan(fields, experts)
    return PLANS["NVFP4"] if _nvfp4(experts) else MXFP4


def _nvfp4(experts: Experts) -> bool:
    """Return whether a ModelOpt export has the layer's experts in NVFP4: all but those that its
    `ignore` names."""
    config, _ = quantization_config(experts.context.checkpoint)
    found = config or {}
    if str(found.get("moe_quant_algo") or "").upper() != "NVFP4":
        return False
    patterns, index = found.get("ignore"), experts.site.layer_index
    if index is None or not isinstance(patterns, list):
        return True
    name = f"layers.{index}.ffn.experts"
    return not any(isinstance(p, str) and fnmatchcase(name, p) for p in patterns)
