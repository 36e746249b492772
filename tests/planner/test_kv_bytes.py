"""Bytes per token where only the config is known: no GPU, no answer of the engine's tables."""

from __future__ import annotations

from typing import Any

import pytest
from known_models import model
from quantplan.dispatch.facts import Checkpoint, Deployment, MemoryFlags
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.planner.kv_cache import KvCache, kv_cache
from quantplan.tables.errors import NotKnownError, UsageError


def cache(checkpoint: Checkpoint, dtype: str = "bfloat16", **options: Any) -> KvCache:
    return kv_cache(checkpoint, model_structure(checkpoint), None, Deployment(**options),
                    MemoryFlags(), version="0.32.0", dtype=dtype)


@pytest.mark.parametrize("name, options, wanted", [
    # docs of the models: layers x 2 x kv heads x head_dim x bytes
    ("llama-3.1-8b", {}, 128 * 1024),
    ("llama-3.1-8b", {"kv_cache_dtype": "bfloat16"}, 128 * 1024),
    ("llama-3.1-8b", {"kv_cache_dtype": "fp8_e5m2"}, 64 * 1024),
    ("llama-3.1-8b", {"dtype": "float32"}, 256 * 1024),
    ("llama-3.1-8b", {"dtype": "float32", "kv_cache_dtype": "float16"}, 128 * 1024),
    ("llama-3.1-8b", {"tp": 4}, 32 * 1024),
    ("llama-3.1-8b", {"tp": 16}, 16 * 1024),
    ("llama-3.3-70b", {"tp": 2}, 160 * 1024),
    ("qwen2.5-7b", {}, 56 * 1024),
    ("qwen3-14b", {}, 160 * 1024),
])
def test_bytes_per_token(name: str, options: dict[str, Any], wanted: int) -> None:
    assert cache(model(name), **options).bytes_per_token == wanted


def test_the_formula_has_one_factor_per_part() -> None:
    (line,) = cache(model("llama-3.1-8b"), tp=4, kv_cache_dtype="fp8").lines
    assert line.formula == "32 layers x 2 KV heads x 256 bytes (key 128, value 128, fp8)"
    assert line.kind == "exact"


def test_fp8_weights_alone_keep_a_16_bit_cache() -> None:
    made = as_format(model("llama-3.1-8b"), "ct-fp8-static")
    assert cache(made).bytes_per_token == 128 * 1024
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    section = {**made.config["quantization_config"], "kv_cache_scheme": scheme}
    declared = made._replace(config={**made.config, "quantization_config": section})
    assert cache(declared).bytes_per_token == 64 * 1024
    assert cache(declared, kv_cache_dtype="bfloat16").bytes_per_token == 128 * 1024


@pytest.mark.parametrize("dtype", ["octave_k3v4", "int3", ""])
def test_a_dtype_without_a_row_is_named(dtype: str) -> None:
    with pytest.raises(NotKnownError, match=f"KV cache dtype '{dtype}'; wanted one of auto"):
        cache(model("llama-3.1-8b"), kv_cache_dtype=dtype)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="attention does not divide over 3 ranks"):
        cache(model("llama-3.1-8b"), tp=3)


def test_a_window_of_every_layer_leaves_nothing_that_grows() -> None:
    """vllm v1/kv_cache_interface.py:SlidingWindowSpec: 1,023 tokens and two batches in flight, and
    one more block, since a window may begin within one."""
    found = cache(model("llama-3.1-8b", sliding_window=1024))
    assert found.bytes_per_token == 0
    blocks = -(-(1023 + 2 * 8192) // 16) + 1
    assert found.fixed_bytes_per_request == blocks * 16 * 128 * 1024
