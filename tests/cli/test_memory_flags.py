"""Memory flags, read as vLLM reads them (vllm 0.32.0 utils/argparse_utils.py)."""

from __future__ import annotations

import pytest
from quantplan.tables.errors import UsageError

from quantplan.memory_flags import engine_count, memory_flags


@pytest.mark.parametrize("text, count", [
    ("1k", 1_000), ("1K", 1_024), ("25.6k", 25_600), ("8192", 8_192), ("32K", 32_768)])
def test_numbers_with_suffixes(text: str, count: int) -> None:
    """The examples of human_readable_int."""
    assert engine_count(text, "--max-model-len", "a number") == count
    assert memory_flags({"max_model_len": text}).max_model_len == count


@pytest.mark.parametrize("text", ["auto", "AUTO", "-1", -1])
def test_the_longest_context_that_fits(text: str) -> None:
    """human_readable_int_or_auto."""
    assert memory_flags({"max_model_len": text}).max_model_len == -1


@pytest.mark.parametrize("size, size_bytes", [
    ("20G", 20 * 2**30), ("20GiB", 20 * 2**30), ("20g", 20 * 10**9), (2**30, 2**30)])
def test_the_cache_s_own_size(size: str | int, size_bytes: int) -> None:
    assert memory_flags({"kv_cache_memory_bytes": size}).kv_cache_memory_bytes == size_bytes


@pytest.mark.parametrize("flag, text", [
    ("max_model_len", "1.5K"), ("max_model_len", "many"), ("max_model_len", "0"),
    ("max_model_len", "-2"), ("kv_cache_memory_bytes", "20 G")])
def test_no_number(flag: str, text: str) -> None:
    """Decimals have no binary suffix in the engine either."""
    with pytest.raises(UsageError, match=f"--{flag.replace('_', '-')}"):
        memory_flags({flag: text})
