"""The schema of what vLLM's KV cache holds, its loading, and the rules of a version."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from quantplan.tables.load import read_table
from quantplan.tables.memory_loading import memory_rules
from quantplan.tables.schema import Field, Row

PREFIX = "kv_"
KV_RULES = (
    "printed_tokens", "in_flight", "null_block", "checked_groups", "near_counts", "pads_attention",
    "promotes_windows", "window_blocks", "mixed_dtypes", "latent_alignment",
    "caches_hybrid_prefixes", "models_word", "packs")
"""Ids of tables/memory/vllm/kv.yaml behind the prefix: their notes say what they decide."""
SOURCE = Field("text", "engine file:symbol")

KV_CACHE_DOCUMENT: Row = {
    "dtypes": Field("list", "cache dtypes: bytes of a key and a value of one head", of={
        "id": Field("text", "the name in --kv-cache-dtype or that the engine makes of it"),
        "key_bits": Field("int", "bits of one element of a key; absent: the model's", False),
        "value_bits": Field("int", "bits of one element of a value; absent: the model's", False),
        "key_extra_bytes": Field("int", "bytes beside a key of one head", False),
        "value_extra_bytes": Field("int", "bytes beside a value of one head", False),
        "scale_group": Field("int", "elements that share a scale of one byte", False),
        "even": Field("flag", "a key and its value together take an even number of bytes", False),
        "token_bytes": Field("int", "bytes of a token of latent attention, whatever its sizes",
                             False),
        "source": SOURCE,
    }),
    "caches": Field("list", "module classes that hold a cache or a state", of={
        "module": Field("text", "the module class"),
        "holds": Field("text", "what it holds", choices=(
            "attention", "latent", "index_keys", "nothing", "mamba1", "mamba2", "gated_delta_net",
            "kda", "linear", "short_conv", "index_vectors", "compressed", "compressed_window",
            "compressed_keys", "compressor_state")),
        "scale_group": Field("int", "elements that share a scale of four bytes", False),
        "checkpoint_since": Field("text", "the version from which a prefill keeps one more state "
                                  "where prefixes are cached", False),
        "state_dtype": Field("text", "dtype of the state; absent: that of the convolution", False),
        "source": SOURCE,
    }),
    "state_dtypes": Field("list", "model classes whose config says the dtype of states", of={
        "architectures": Field("list", "the model classes", of=Field("text", "a class name")),
        "field": Field("text", "the config's field"),
        "otherwise": Field("text", "the dtype where it is absent; absent: the convolution's",
                           False),
        "source": SOURCE,
    }),
    "blocks": Field("list", "tokens of a block that attention backends take", of={
        "backends": Field("list", "the backends", of=Field("text", "a backend's name")),
        "sizes": Field("list", "block sizes of the kernel", False, of=Field("int", "tokens")),
        "multiple_of": Field("int", "any multiple of this many tokens", False),
        "preferred": Field("int", "tokens where no flag says so; absent: the engine's default, or "
                           "the smallest size where that is none", False),
        "source": SOURCE,
    }),
}


def kv_table() -> Mapping[str, Any]:
    """Return the whole table."""
    found: Mapping[str, Any] = read_table("kv/vllm")
    return found


@cache
def kv_rules(version: str) -> Mapping[str, Any]:
    """Return rule -> value of the KV cache in one vLLM version, a release or a build between two.

    Raises NotKnownError for a version older than the memory rules.
    """
    rules = memory_rules("vllm", version)
    return {name: rules.rule(PREFIX + name).value for name in KV_RULES}


@cache
def kv_rows(part: str, key: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of a list of the table by one of their fields."""
    return {row[key]: row for row in kv_table()[part]}


@cache
def kernel_blocks() -> Mapping[str, Mapping[str, Any]]:
    """Return attention backend -> the row of its block sizes."""
    return {name: row for row in kv_table()["blocks"] for name in row["backends"]}
