"""MXFP4 experts: Mxfp4MoEMethod and GptOssMxfp4MoEMethod
(model_executor/layers/quantization/mxfp4.py)."""

from __future__ import annotations

from quantplan.dispatch.vllm.experts.plan import Plan

MXFP4 = Plan("Mxfp4MoEMethod", "mxfp4_fp8_activations", "kMxfp4Static")
GPT_OSS = Plan("GptOssMxfp4MoEMethod", "mxfp4", "kMxfp4Static")
