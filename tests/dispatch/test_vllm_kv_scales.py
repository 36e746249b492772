"""Scales of a quantized KV cache: in the headers, loaded or not, and 1.0 where they are missing
(model_executor/layers/quantization/kv_cache.py:BaseKVCacheMethod)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import AWQ_PARTS, FP8_PARTS, ask, found, only, quantization, starts, stored

MISSING, NOT_LOADED = "kv-scales-missing", "kv-scales-not-loaded"


def scales(*names: str, layers: int = 2) -> dict[str, str]:
    """Return the headers of scales under the attention of every layer."""
    return {f"model.layers.{index}.self_attn.{name}": "F32"
            for index in range(layers) for name in names}


def test_fp8_kv_without_scales_in_the_checkpoint() -> None:
    answer = ask("fp8-dynamic", "8.9", kv_cache_dtype="fp8", tensors=stored(FP8_PARTS))
    finding = only(answer, MISSING)
    assert (finding.stage, finding.severity) == ("scales in the checkpoint", "warning")
    assert finding.message == ("the KV cache is FP8 but the checkpoint stores no k/v scales: 1.0 "
                               "is used silently")


def test_nvfp4_kv_without_scales() -> None:
    answer = ask("fp8-dynamic", "10.0", kv_cache_dtype="nvfp4", tensors=stored(FP8_PARTS))
    assert only(answer, MISSING).message.startswith("the KV cache is NVFP4 but the checkpoint ")


def test_a_kv_scheme_counts_as_fp8_kv() -> None:
    assert only(ask("ct-fp8-kv", "8.9", tensors=stored(FP8_PARTS)), MISSING)


@pytest.mark.parametrize("names", [
    ("k_scale", "v_scale"), ("attn.k_scale", "attn.v_scale"), ("kv_scale",),
    ("k_proj.output_scale", "v_proj.output_scale"), ("k_proj.k_scale", "v_proj.v_scale"),
    ("k_cache.scale", "v_cache.scale")])
def test_fp8_kv_with_scales(names: tuple[str, ...]) -> None:
    """model_executor/layers/quantization/base_config.py:QuantizationConfig.get_cache_scale_mapper
    and that of fp8.py:Fp8Config."""
    tensors = {**stored(FP8_PARTS), **scales(*names)}
    answer = ask("fp8-dynamic", "8.9", kv_cache_dtype="fp8", tensors=tensors)
    assert [f.id for f in answer.trace.findings if "scale" in f.id] == []


def test_scales_of_some_layers_only() -> None:
    tensors = {**stored(FP8_PARTS), **scales("k_scale", "v_scale", layers=1)}
    finding = only(ask("fp8-dynamic", "8.9", kv_cache_dtype="fp8", tensors=tensors), MISSING)
    assert finding.message == ("the KV cache is FP8 but 1 of 2 attention layers have no k/v "
                               "scales stored: 1.0 is used silently")


@pytest.mark.parametrize("options", [
    {"kv_cache_dtype": "auto", "tensors": stored(FP8_PARTS)}, {"kv_cache_dtype": "fp8"},
    {"kv_cache_dtype": "fp8_per_token_head", "tensors": stored(FP8_PARTS)}])
def test_nothing_to_say(options: dict[str, Any]) -> None:
    """16-bit KV, no headers, scales that are made when tokens are stored."""
    assert found(ask("fp8-dynamic", "8.9", **options), MISSING) == []


def test_scales_that_no_method_loads() -> None:
    """AWQ attaches no KV-cache method."""
    tensors = {**stored(AWQ_PARTS), **scales("k_scale", "v_scale")}
    answer = ask("awq4-g128", "8.9", kv_cache_dtype="fp8", tensors=tensors)
    assert only(answer, NOT_LOADED).message == (
        "model.layers.0.self_attn.attn: the checkpoint stores k/v scales, but its method does not "
        "load them here: 1.0 is used")
    assert found(answer, MISSING) == []


def test_a_value_scale_without_a_key_scale() -> None:
    tensors = {**stored(FP8_PARTS), **scales("v_scale")}
    answer = ask("fp8-dynamic", "8.9", kv_cache_dtype="fp8", tensors=tensors)
    assert only(answer, "kv-scale-without-key").severity == "error"
    assert starts(answer) == "no"
    one = {**stored(FP8_PARTS), **scales("k_scale")}
    assert found(ask("fp8-dynamic", "8.9", kv_cache_dtype="fp8", tensors=one),
                 "kv-scale-without-key") == []


def test_the_kv_scheme_of_an_autofp8_checkpoint_is_not_read() -> None:
    """AutoFP8 writes text; only compressed-tensors and ModelOpt configs read the field (fp8.py:
    Fp8Config.from_config)."""
    answer = ask(quantization("fp8-static", kv_cache_scheme="static"), "8.9").to_dict()
    assert (answer["outcome"], answer["kv_cache"]["resolved"]) == ("ok", "auto")


@pytest.mark.parametrize("quant, told", [
    (None, "kv-scales-missing"), ("awq4-g128", "kv-scales-missing"),
    ("gptq4-g128", "kv-scales-missing"), ("fp8-dynamic", "kv-scales-not-seen"),
    ("ct-fp8-dynamic", "kv-scales-not-seen")])
def test_without_headers_only_methods_that_load_scales_may_have_them(quant: Any, told: str) -> None:
    """attention.py:set_default_quant_scales; AWQ, GPTQ and 16-bit layers have no KV method."""
    answer = ask(quant, kv_cache_dtype="fp8")
    assert [f.id for f in answer.trace.findings if f.id.startswith("kv-scales")] == [told]
    assert not [f for f in ask(quant).trace.findings if f.id.startswith("kv-scales")]
