"""KV cache bytes per token, against the engine's own logs and cache dtypes."""

from __future__ import annotations

from typing import Any

import pytest
from known_models import model
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.planner.kv_cache import kv_line, kv_notes
from quantplan.tables.errors import NotKnownError, UsageError


def per_token(name: str, changes: dict[str, Any] | None = None, **options: Any) -> int:
    """Return the bytes per token of a model."""
    checkpoint = model(name, **(changes or {}))
    return kv_line(checkpoint.config, model_structure(checkpoint), **options).bytes


@pytest.mark.parametrize("name, options, wanted", [
    # docs of the models: layers x 2 x kv heads x head_dim x bytes
    ("llama-3.1-8b", {}, 128 * 1024),
    ("llama-3.1-8b", {"kv_cache_dtype": "bfloat16"}, 128 * 1024),
    ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}, 64 * 1024),
    ("llama-3.1-8b", {"kv_cache_dtype": "fp8_e4m3"}, 64 * 1024),
    ("llama-3.1-8b", {"kv_cache_dtype": "fp8_e5m2"}, 64 * 1024),
    ("llama-3.1-8b", {"dtype": "float32"}, 256 * 1024),
    ("llama-3.1-8b", {"dtype": "float32", "kv_cache_dtype": "float16"}, 128 * 1024),
    ("llama-3.1-8b", {"tp": 4}, 32 * 1024),
    ("llama-3.1-8b", {"tp": 8}, 16 * 1024),
    ("llama-3.1-8b", {"tp": 16}, 16 * 1024),
    ("llama-3.3-70b", {"tp": 2}, 160 * 1024),
    ("qwen2.5-7b", {}, 56 * 1024),
    ("qwen3-14b", {}, 160 * 1024),
])
def test_bytes_per_token(name: str, options: dict[str, Any], wanted: int) -> None:
    assert per_token(name, **options) == wanted


# "Available KV cache memory" in GiB and "GPU KV cache size" in tokens of the same public logs as
# in test_weight_bytes.py; the figure is printed with two decimals and in blocks of 16 tokens.
@pytest.mark.parametrize("name, options, available_gib, tokens", [
    ("llama-3.1-8b", {}, 58.11, 476016),
    ("llama-3.1-8b", {"dtype": "float32"}, 42.80, 175296),
    ("llama-3.1-8b", {"tp": 2}, 63.76, 1044688),
    ("llama-3.1-8b", {"tp": 4}, 67.44, 2209792),
    ("llama-3.3-70b", {"tp": 2}, 37.28, 244304),
    ("llama-3.3-70b", {"tp": 4}, 54.09, 708992),
    ("qwen2.5-7b", {}, 58.53, 1096000),
    ("qwen3-14b", {}, 41.94, 274848),
])
def test_tokens_are_those_that_the_engine_logged(
    name: str, options: dict[str, Any], available_gib: float, tokens: int
) -> None:
    size = per_token(name, **options)
    least, most = ((available_gib + off) * 2**30 // size for off in (-0.005, 0.005))
    assert least - 16 <= tokens <= most


def test_the_formula_has_one_factor_per_part() -> None:
    checkpoint = model("llama-3.1-8b")
    line = kv_line(checkpoint.config, model_structure(checkpoint), tp=4, kv_cache_dtype="fp8")
    assert line.formula == ("2 (K and V) x 32 layers x 2 KV heads x 128 head_dim x 1 byte (fp8)")
    assert line.kind == "exact"


def test_fp8_weights_alone_keep_a_16_bit_cache() -> None:
    made = as_format(model("llama-3.1-8b"), "ct-fp8-static")
    structure = model_structure(made)
    assert kv_line(made.config, structure).bytes == 128 * 1024
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    section = {**made.config["quantization_config"], "kv_cache_scheme": scheme}
    declared = {**made.config, "quantization_config": section}
    assert kv_line(declared, structure).bytes == 64 * 1024
    assert kv_line(declared, structure, kv_cache_dtype="bfloat16").bytes == 128 * 1024


@pytest.mark.parametrize("dtype", ["nvfp4", "fp8_per_token_head", "turboquant_k8v4", "int3", ""])
def test_a_dtype_without_a_row_is_named(dtype: str) -> None:
    with pytest.raises(NotKnownError, match=f"KV cache dtype '{dtype}'; wanted one of auto"):
        per_token("llama-3.1-8b", kv_cache_dtype=dtype)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="attention does not divide over 3 ranks"):
        per_token("llama-3.1-8b", tp=3)


@pytest.mark.parametrize("changes, noted", [
    ({}, False), ({"sliding_window": None}, False), ({"sliding_window": 4096}, True),
    ({"sliding_window": 4096, "use_sliding_window": False}, False),
    ({"sliding_window": 4096, "use_sliding_window": True}, True),
])
def test_a_sliding_window_is_said_to_be_left_out(changes: dict[str, Any], noted: bool) -> None:
    found = [note.id for note in kv_notes(model("llama-3.1-8b", **changes).config)]
    assert found == (["sliding-window-not-modelled"] if noted else [])
