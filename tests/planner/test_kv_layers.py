"""What layers keep of a token: the cache dtypes' layouts, and which layers keep anything.

Bytes of a head of 64, 128 and 256 features are those of the engine's own packing functions
(vllm 0.32.0 v1/attention/backends: customize_spec of each backend)."""

from __future__ import annotations

from typing import Any

import pytest
from quantplan.dispatch.bundled import bundled_checkpoint
from quantplan.dispatch.facts import Deployment, MemoryFlags
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.gpu import find_gpu
from quantplan.dispatch.resolve import resolve
from quantplan.planner.kv_cache import KvCache, kv_cache
from quantplan.planner.kv_layers import head_bytes
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import NotKnownError, UsageError


def cache(
    name: str, flags: MemoryFlags | None = None, gpu: str = "h100-80g",
    version: str | None = None, **options: Any,
) -> KvCache:
    checkpoint = bundled_checkpoint(name)
    deployment = Deployment(**options)
    trace = resolve(checkpoint, load_engine("vllm", "0.32.0"), find_gpu(gpu), deployment)
    return kv_cache(checkpoint, model_structure(checkpoint), trace, deployment,
                    flags or MemoryFlags(max_num_batched_tokens=8192),
                    version=version or "0.32.0", dtype=trace.dtype)


@pytest.mark.parametrize("dtype, sizes", [
    ("auto", (256, 512, 1024)),
    ("bfloat16", (256, 512, 1024)),
    ("fp8", (128, 256, 512)),
    ("fp8_e5m2", (128, 256, 512)),
    ("nvfp4", (72, 144, 288)),
    ("nvfp4_4over6", (72, 144, 288)),
    ("int8_per_token_head", (136, 264, 520)),
    ("fp8_per_token_head", (136, 264, 520)),
    ("int4_per_token_head", (72, 136, 264)),
    ("turboquant_k8v4", (100, 196, 388)),
    ("turboquant_4bit_nc", (70, 134, 262)),
    ("turboquant_k3v4_nc", (62, 118, 230)),
    ("turboquant_3bit_nc", (54, 102, 198)),
    ("ultraquant_4bit", (68, 136, 272)),
])
def test_bytes_of_a_key_and_a_value(dtype: str, sizes: tuple[int, ...]) -> None:
    assert tuple(head_bytes(dtype, dim, dim, "bfloat16") for dim in (64, 128, 256)) == sizes


def test_every_choice_of_the_engine_has_a_layout_or_is_not_known() -> None:
    choices = [row["id"] for row in load_engine("vllm", "0.32.0")["kv_cache"]["dtypes"]]
    for_latent = {"fp8_ds_mla", "nvfp4_ds_mla"}
    assert all(head_bytes(dtype, 128, 128, "bfloat16") for dtype in choices
               if dtype not in for_latent)
    with pytest.raises(NotKnownError, match="octave_k3v4"):
        head_bytes("octave_k3v4", 128, 128, "bfloat16")


@pytest.mark.parametrize("name, options, token_bytes, block", [
    ("llama-3.1-8b", {}, 128 * 1024, 16),
    ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}, 64 * 1024, 16),
    ("llama-3.1-8b", {"dtype": "float32"}, 256 * 1024, 16),
    ("llama-3.1-8b", {"block_size": 32}, 128 * 1024, 32),
    ("llama-3.1-8b", {"tp": 16}, 16 * 1024, 16),
    ("llama-3.3-70b", {"tp": 2}, 160 * 1024, 16),
    ("deepseek-r1", {"tp": 8}, 61 * 1152, 16),
    ("deepseek-r1", {"tp": 8, "attention_backend": "FLASHMLA"}, 61 * 1152, 64),
    ("deepseek-v3.2", {"tp": 8}, 61 * (1152 + 132), 64),
    ("deepseek-v3.2", {"tp": 8, "kv_cache_dtype": "fp8"}, 61 * (656 + 132), 64),
])
def test_bytes_per_token(
    name: str, options: dict[str, Any], token_bytes: int, block: int
) -> None:
    found = cache(name, **options)
    assert (found.bytes_per_token, found.block_tokens) == (token_bytes, block)
    assert found.fixed_bytes_per_request == 0


def test_first_and_last_layers_stay_whole_beside_turboquant() -> None:
    """28 layers of 134 bytes a head and four of 512, eight heads; the block grows to 64 tokens so
    that a packed page covers 16 tokens of a whole one."""
    found = cache("llama-3.1-8b", kv_cache_dtype="turboquant_4bit_nc", gpu="a100-80g")
    assert found.bytes_per_token == 8 * (28 * 134 + 4 * 512)
    assert found.block_tokens == 64


def test_windows_are_fixed_bytes_of_a_request() -> None:
    """gpt-oss-20b: 12 layers grow; 12 keep 127 tokens and those of two batches in flight, and the
    window may begin within a block."""
    found = cache("gpt-oss-20b")
    page = 12 * 16 * 2048
    blocks = -(-(127 + 2 * 8192) // 16) + 1
    assert found.bytes_per_token == 12 * 2048
    assert found.fixed_bytes_per_request == blocks * page
    older = cache("gpt-oss-20b", version="0.19.0")
    assert older.fixed_bytes_per_request == (-(-(127 + 8192) // 16) + 1) * page


def test_rows_of_several_tokens_and_what_is_not_yet_compressed() -> None:
    """DeepSeek-V4-Pro; test_kv_groups.py compares such layouts with the engine's own."""
    found = cache("deepseek-v4-pro", tp=8)
    assert found.block_tokens == 256
    own = {line.name: line.bytes for line in found.lines}
    assert own["KV cache of indexer keys"] == 30 * 132 // 4
    assert {line.name for line in found.request_lines} == {
        "KV cache of latent window", "KV cache of compressor's tokens"}


def test_pipeline_stages_keep_their_own_layers() -> None:
    whole, half = cache("llama-3.1-8b"), cache("llama-3.1-8b", flags=MemoryFlags(pp=2))
    assert half.bytes_per_token * 2 == whole.bytes_per_token
    uneven = cache("llama-3.1-8b", flags=MemoryFlags(pp=3))
    assert uneven.bytes_per_token == 11 * 4096


def test_a_flag_sets_the_blocks() -> None:
    found = cache("llama-3.1-8b", flags=MemoryFlags(num_gpu_blocks_override=100))
    assert found.blocks(2**40) == found.blocks(1) == 100
    assert found.largest_context(1) == 99 * 16


def test_context_parallel_ranks_share_a_context() -> None:
    found = cache("deepseek-r1", flags=MemoryFlags(dcp=4), tp=8)
    assert found.bytes_per_token == 61 * 1152 // 4
    with pytest.raises(UsageError, match="sliding windows"):
        cache("gpt-oss-20b", flags=MemoryFlags(dcp=2), tp=2)


@pytest.mark.parametrize("config, known", [
    ({"method": "ngram", "num_speculative_tokens": 3}, True),
    ({"method": "eagle3", "model": "x", "num_speculative_tokens": 3}, False),
    ({"method": "mtp", "num_speculative_tokens": 1}, False),
])
def test_drafts(config: dict[str, Any], known: bool) -> None:
    flags = MemoryFlags(speculative_config=config)
    if known:
        assert cache("llama-3.1-8b", flags=flags).bytes_per_token == 128 * 1024
    else:
        with pytest.raises(NotKnownError, match="draft"):
            cache("llama-3.1-8b", flags=flags)


def test_an_older_version_is_not_guessed() -> None:
    with pytest.raises(NotKnownError, match=r"0\.14\.1"):
        cache("llama-3.1-8b", version="0.14.1")


def test_the_engine_says_how_long_a_request_may_be() -> None:
    found = cache("llama-3.1-8b")
    words = found.refusal(8 * 2**30)
    assert words is not None
    assert "(16.0 GiB KV cache is needed" in words
    assert f"maximum model length is {found.largest_context(8 * 2**30)}." in words
    assert found.largest_context(8 * 2**30) == 65536 - 16
