"""What SGLang 0.5.22 starts and does not run as hoped: each finding with the configuration that
makes it, and one that does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from quantplan import explain
from tests.dispatch.test_sglang_config_files import LLAMA, MOE

FP8: Mapping[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
AWQ: Mapping[str, Any] = {
    "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
GPTQ: Mapping[str, Any] = {
    "quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
MODELOPT: Mapping[str, Any] = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": []}
CT: Mapping[str, Any] = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True,
        "dynamic": False}}}}
QKV = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
PER_CHANNEL: Mapping[str, Any] = {"quantization": "fp8"}


def ids(
    model: Mapping[str, Any], config: Mapping[str, Any] | None, capability: int, **options: Any
) -> set[str]:
    """Return the ids of the findings."""
    own = {} if config is None else {"quantization_config": dict(config)}
    return {finding.id for finding in explain(
        {**model, **own}, engine="sglang", engine_version="0.5.22", capability=capability,
        **options).trace.findings}


@pytest.mark.parametrize("finding, with_it, without", [
    ("not-optimized", (LLAMA, AWQ, 75, {}), (LLAMA, AWQ, 80, {})),
    ("not-optimized", (LLAMA, None, 120, {"quantization": "mxfp8"}),
     (LLAMA, None, 103, {"quantization": "mxfp8"})),
    ("fp8-unfused", (LLAMA, FP8, 120, {}), (LLAMA, {**FP8, "activation_scheme": "static"}, 120,
                                            {})),
    ("fp8-unfused", (LLAMA, FP8, 121, {}), (LLAMA, None, 121, PER_CHANNEL)),
    ("ignore-without-effect", (LLAMA, {**CT, "ignore": QKV}, 90, {}),
     (MOE, {**CT, "ignore": QKV}, 90, {})),
    ("ignore-without-effect", (LLAMA, {**AWQ, "modules_to_not_convert": ["q_proj"]}, 90, {}),
     (LLAMA, {**AWQ, "modules_to_not_convert": ["self_attn"]}, 90, {})),
    ("ignore-without-effect", (LLAMA, {**CT, "ignore": ["re:.*q_proj"]}, 90, {}),
     (LLAMA, {**CT, "ignore": ["re:.*qkv_proj"]}, 90, {})),
    ("method-replaced", (LLAMA, MODELOPT, 90, {"quantization": "fp8"}),
     (LLAMA, MODELOPT, 90, {"quantization": "modelopt"})),
    ("unquant-unheeded", (LLAMA, FP8, 90, {"quantization": "unquant"}),
     (LLAMA, None, 90, {"quantization": "unquant"})),
    ("experts-not-quantized", (MOE, AWQ, 75, {}), (MOE, AWQ, 80, {})),
    ("kernel-cannot-run", (MOE, FP8, 86, {}), (MOE, FP8, 89, {})),
    ("kv-fp8-flashinfer", (LLAMA, None, 80, {"kv_cache_dtype": "fp8_e4m3"}),
     (LLAMA, None, 89, {"kv_cache_dtype": "fp8_e4m3"})),
    ("counts-as-typed", (MOE, GPTQ, 100, {}), (MOE, GPTQ, 90, {})),
    ("counts-as-typed", (MOE, AWQ, 103, {}), (MOE, AWQ, 103, {"quantization": "moe_wna16"})),
])
def test_what_is_told(
    finding: str, with_it: tuple[Any, Any, int, Mapping[str, Any]],
    without: tuple[Any, Any, int, Mapping[str, Any]],
) -> None:
    told, untold = (ids(model, config, capability, **options)
                    for model, config, capability, options in (with_it, without))
    assert finding in told
    assert finding not in untold
