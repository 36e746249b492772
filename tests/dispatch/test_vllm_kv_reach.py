"""Which attention layers the KV-cache flags and schemes reach: answers of vLLM 0.32.0's own
constructors, asked on the grid's models."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import explain
from quantplan.oracle.grid_models import grid_models

PER_HEAD = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "attn_head", "symmetric": True,
                        "dynamic": False},
    "config_groups": {"group_0": {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True,
                    "dynamic": False},
        "input_activations": {"num_bits": 8, "type": "float", "strategy": "token",
                              "symmetric": True, "dynamic": True}}}}
UNNAMED = ("TurboQuant KV cache requires identifiable full-attention layers, but none were found "
           "in the hybrid model config.")


def asked(architecture: str, quantization: Any = None, **options: Any) -> dict[str, Any]:
    """Return the answer for the grid's model of an architecture at 9.0."""
    config = {**grid_models()[architecture][0]}
    config.pop("quantization_config", None)
    if quantization:
        config["quantization_config"] = quantization
    return explain(config, engine="vllm", engine_version="0.32.0", capability=90,
                   **options).to_dict()


def dtypes(answer: dict[str, Any]) -> set[str]:
    """Return the cache dtypes of the layers that have a backend."""
    return {row["kv_cache_dtype"] for row in answer["layers"] if row.get("attn_backend")}


@pytest.mark.parametrize(("flag", "quantization", "dtype"), [
    ("auto", None, "auto"), ("fp8", None, "auto"), ("turboquant_k8v4", None, "auto"),
    ("auto", {**PER_HEAD, "kv_cache_scheme": {**PER_HEAD["kv_cache_scheme"],  # type: ignore[dict-item]
                                              "strategy": "tensor"}}, "fp8")])
def test_falcon_passes_no_cache_config(flag: str, quantization: Any, dtype: str) -> None:
    """model_executor/models/falcon.py:FalconAttention: the flag does not reach its layers, a
    scheme of the checkpoint does."""
    assert dtypes(asked("FalconForCausalLM", quantization, kv_cache_dtype=flag)) == {dtype}


def test_latent_attention_is_not_told_of_scales_per_head() -> None:
    """model_executor/layers/attention/mla_attention.py passes no use_per_head_quant_scales."""
    answer = asked("DeepseekV3ForCausalLM", PER_HEAD, tp=8)
    assert (answer["outcome"], dtypes(answer)) == ("ok", {"auto"})


@pytest.mark.parametrize("architecture", ["FalconH1ForCausalLM", "KimiLinearForCausalLM"])
def test_hybrids_whose_attention_layers_are_not_named(architecture: str) -> None:
    """TurboQuantConfig.get_boundary_skip_layers raises before any layer is built."""
    error = asked(architecture, kv_cache_dtype="turboquant_k8v4", trust_remote_code=True)["error"]
    assert (error["type"], error["message"]) == ("NotImplementedError", UNNAMED)


def test_skipped_layers_need_one_number_in_a_layers_name() -> None:
    """model_executor/models/utils.py:extract_layer_index; LongCat's layers attend twice."""
    error = asked("LongcatFlashForCausalLM", kv_cache_dtype_skip_layers=("0",))["error"]
    assert (error["type"], error["message"]) == (
        "AssertionError",
        "layer name model.layers.0.self_attn.0.attn should only contain one integer")
