"""FlashAttention 3 and 4 with an FP8 KV cache: v1/attention/backends/fa_utils.py of vLLM 0.32.0
(get_flash_attn_version, flash_attn_supports_kv_cache_dtype). The answers are those of the engine's
own selection code for an emulated GPU."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, message, quantization

from quantplan import Explanation

EXACT = {"VLLM_BATCH_INVARIANT": "1"}
VERSIONS = ("FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 on SM90, or FA4 on SM100")
PER_HEAD = {"num_bits": 8, "type": "float", "strategy": "attn_head", "symmetric": True,
            "dynamic": False}


def asked(head: int, capability: str, exact: bool, flashinfer: bool, **options: Any) -> Explanation:
    """Return the answer for Llama with heads of HEAD features."""
    return ask(options.pop("quant", None), capability, model={**LLAMA, "head_dim": head},
               env=EXACT if exact else {}, libs={"flashinfer": flashinfer}, **options)


def backend(answer: Explanation) -> tuple[str | None, str | None]:
    """Return the attention backend and the KV dtype of every layer."""
    assert answer.trace.error is None, answer.trace.error
    (found,) = {(x.attn_backend, x.kv_cache_dtype) for x in answer.trace.layers
                if x.module == "Attention"}
    return found


def reasons(answer: Explanation) -> dict[str, str]:
    """Return backend -> the reasons that the engine lists against it."""
    listed = message(answer).split("Reasons: ")[1]
    return dict(re.findall(r"(\w+): \[([^\]]*)\]", listed))


@pytest.mark.parametrize("flashinfer", [True, False])
@pytest.mark.parametrize("head, exact, name", [
    (128, False, "FLASH_ATTN"), (128, True, "FLASH_ATTN"), (256, False, "FLASH_ATTN"),
    (256, True, "FLASH_ATTN"), (264, False, "TRITON_ATTN"), (264, True, "TRITON_ATTN"),
    (512, False, "FLASH_ATTN"), (512, True, "TRITON_ATTN"), (520, False, "TRITON_ATTN")])
def test_fp8_kv_on_9_0(head: int, exact: bool, name: str, flashinfer: bool) -> None:
    """FlashAttention 3 reads heads up to 256; 512 needs 4, which is not batch invariant."""
    answer = asked(head, "9.0", exact, flashinfer, kv_cache_dtype="fp8")
    assert backend(answer) == (name, "fp8")


@pytest.mark.parametrize("head, exact, flashinfer, name", [
    (128, False, True, "FLASHINFER"), (128, True, True, "TRITON_ATTN"),
    (128, False, False, "FLASH_ATTN"), (128, True, False, "TRITON_ATTN"),
    (256, False, True, "FLASHINFER"), (256, True, True, "TRITON_ATTN"),
    (256, False, False, "TRITON_ATTN"), (256, True, False, "TRITON_ATTN"),
    (264, False, True, "TRITON_ATTN"), (512, False, True, "FLASHINFER"),
    (512, False, False, "TRITON_ATTN")])
def test_fp8_kv_on_10_0(head: int, exact: bool, flashinfer: bool, name: str) -> None:
    """FlashAttention 4 reads heads up to 128 and is not batch invariant."""
    answer = asked(head, "10.0", exact, flashinfer, kv_cache_dtype="fp8")
    assert backend(answer) == (name, "fp8")


@pytest.mark.parametrize("capability, head", [("9.0", 512), ("10.0", 256)])
def test_a_16_bit_cache_asks_for_no_version(capability: str, head: int) -> None:
    for exact in (False, True):
        answer = asked(head, capability, exact, flashinfer=False)
        assert backend(answer) == ("FLASH_ATTN", "auto")


# The reasons, told where per-head scales leave no backend.


@pytest.mark.parametrize("kv, listed", [
    ("auto", f"head_size not supported, {VERSIONS}"), ("bfloat16", "head_size not supported")])
def test_every_reason_against_flash_attention_is_listed_once(kv: str, listed: str) -> None:
    """FLASH_ATTN.validate_configuration for heads of 260: the size and, with FP8, the version."""
    quant = quantization("ct-fp8-dynamic", kv_cache_scheme=PER_HEAD)
    found = reasons(asked(260, "9.0", False, True, quant=quant, kv_cache_dtype=kv))
    assert found["FLASH_ATTN"] == listed
    assert found["FLASHINFER"] == "head_size not supported, per-head quant scales not supported"


def test_a_cache_that_flash_attention_cannot_read_has_three_reasons() -> None:
    quant = quantization("ct-fp8-dynamic", kv_cache_scheme=PER_HEAD)
    assert reasons(asked(128, "8.0", False, True, quant=quant)) == {
        "FLASH_ATTN": "kv_cache_dtype not supported, per-head quant scales not supported, "
                      + VERSIONS,
        "FLASHINFER": "per-head quant scales not supported",
        "TRITON_ATTN": "per-head quant scales not supported",
        "FLEX_ATTENTION": "kv_cache_dtype not supported, per-head quant scales not supported",
        "TURBOQUANT": "kv_cache_dtype not supported, per-head quant scales not supported"}


# Per-head scales with a 16-bit cache.


def test_per_head_scales_with_a_bfloat16_cache_on_9_0() -> None:
    quant = quantization("ct-fp8-dynamic", kv_cache_scheme=PER_HEAD)
    answer = asked(128, "9.0", False, True, quant=quant, kv_cache_dtype="bfloat16")
    assert backend(answer) == ("FLASH_ATTN", "bfloat16")


def test_per_head_scales_with_a_bfloat16_cache_on_8_0() -> None:
    """The scheme asks for per-head scales even where the cache has none."""
    quant = quantization("ct-fp8-dynamic", kv_cache_scheme=PER_HEAD)
    found = reasons(asked(128, "8.0", False, True, quant=quant, kv_cache_dtype="bfloat16"))
    assert found["FLASH_ATTN"] == found["TRITON_ATTN"] == found["FLEX_ATTENTION"] == (
        "per-head quant scales not supported")
    assert found["TURBOQUANT"] == (
        "kv_cache_dtype not supported, per-head quant scales not supported")
