"""Memory flags that vLLM refuses, in its words."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import budget

MODEL = "llama-3.1-8b"


@pytest.mark.parametrize("options, words", [
    ({"max_model_len": 131073}, "User-specified max_model_len (131073) is greater than the derived "
     "max_model_len (max_position_embeddings=131072 or model_max_length=None in model's "
     "config.json)."),
    ({"tp": 4, "dcp": 3}, "tp_size=4 must be divisible by dcp_size=3."),
    ({"max_num_batched_tokens": 256, "max_num_seqs": 512},
     "max_num_batched_tokens (256) must be greater than or equal to max_num_seqs (512)."),
    ({"tp": 4, "dcp": 2}, "Decode context parallelism for GQA/MQA requires "
     "`--tensor-parallel-size` (4) to be greater than the model's total number of KV heads (8)."),
    ({"tp": 16, "dcp": 4}, "`--decode-context-parallel-size` (4) exceeds the maximum supported "
     "value (2) for `--tensor-parallel-size` (16) and 8 model KV heads.")])
def test_flags_that_the_engine_refuses(options: dict[str, Any], words: str) -> None:
    """vllm 0.32.0 config/model.py, config/parallel.py, config/scheduler.py."""
    refusal = budget(MODEL, gpu="h200", **options).refusal
    assert refusal is not None
    assert (refusal.stage, refusal.message) == ("config fields", words)


@pytest.mark.parametrize("model, options", [
    (MODEL, {"max_model_len": 131073, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}),
    (MODEL, {"max_num_batched_tokens": 256}), (MODEL, {"tp": 16, "dcp": 2}),
    ("deepseek-r1", {"tp": 8, "dcp": 8})])
def test_flags_that_it_takes(model: str, options: dict[str, Any]) -> None:
    assert budget(model, gpu="h200", **options).refusal is None


def test_longrope_starts_with_the_length_before_it_was_stretched() -> None:
    """config/model.py:_get_and_verify_max_len; Phi-3-mini-128k-instruct's fields."""
    config = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072,
              "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 32,
              "intermediate_size": 8192, "vocab_size": 32064, "torch_dtype": "bfloat16",
              "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
              "rope_scaling": {"type": "longrope", "long_factor": [1.0] * 48,
                               "short_factor": [1.0] * 48}}
    assert budget(config, gpu="h200").max_model_len == 4096
    assert budget(config, gpu="h200", max_model_len=131072).refusal is None
    assert budget(config, gpu="h200", max_model_len=131073).refusal is not None
