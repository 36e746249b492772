"""Rank 0's share of each layer (vLLM 0.32.0 model_executor/layers/linear.py, distributed/utils.py,
vocab_parallel_embedding.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, QWEN_72B, ask, golden_rows
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.shard import (
    NO_SHARD,
    Shard,
    heads_divide,
    kv_heads_per_rank,
    padded_vocab,
    shard,
    whole_pieces,
)

QWEN_0_5B: dict[str, Any] = {
    **LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
    "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
    "vocab_size": 151936, "tie_word_embeddings": True,
}


def share(config: dict[str, Any], name: str, tp: int) -> Shard:
    """Return rank 0's shard of the layer called NAME."""
    found = model_structure(Checkpoint("x", "mapping", config))
    module = next(m for m in found.modules if m.path.rsplit(".", 1)[-1] == name)
    return shard(module, tp)


# n, k per rank, their whole sizes, the parts, and whether it divides evenly.


@pytest.mark.parametrize("tp, expected", [
    (1, Shard(6144, 4096, 6144, 4096, (4096, 1024, 1024))),
    (2, Shard(3072, 4096, 6144, 4096, (2048, 512, 512))),
    (8, Shard(768, 4096, 6144, 4096, (512, 128, 128))),
    (16, Shard(512, 4096, 8192, 4096, (256, 128, 128))),
    (32, Shard(384, 4096, 12288, 4096, (128, 128, 128)))])
def test_qkv_keeps_whole_heads(tp: int, expected: Shard) -> None:
    """QKVParallelLinear: with more ranks than 8 kv heads, each rank holds one of them, and the
    engine's own output_size counts every copy."""
    assert share(LLAMA, "qkv_proj", tp) == expected


@pytest.mark.parametrize("tp, k", [(1, 29568), (2, 14784), (4, 7392), (8, 3696)])
def test_row_splits_the_input(tp: int, k: int) -> None:
    assert share(QWEN_72B, "down_proj", tp) == Shard(8192, k, 8192, 29568, (8192,))


@pytest.mark.parametrize("tp, part", [(1, 29568), (2, 14784), (8, 3696)])
def test_merged_columns_split_each_part(tp: int, part: int) -> None:
    assert share(QWEN_72B, "gate_up_proj", tp) == Shard(2 * part, 8192, 59136, 8192, (part, part))


@pytest.mark.parametrize("vocab, padded", [(128256, 128256), (32000, 32000), (32001, 32064),
                                           (50257, 50304), (64, 64), (1, 64)])
def test_the_vocabulary_is_padded_to_64(vocab: int, padded: int) -> None:
    """vocab_parallel_embedding.py:DEFAULT_VOCAB_PADDING_SIZE = 64."""
    assert padded_vocab(vocab) == padded
    config = {**LLAMA, "vocab_size": vocab}
    for name in ("embed_tokens", "lm_head"):
        assert share(config, name, 1) == Shard(padded, 4096, padded, 4096, (padded,))


def test_the_vocabulary_splits_after_padding() -> None:
    assert share({**LLAMA, "vocab_size": 32001}, "lm_head", 2).n == 16032


@pytest.mark.parametrize("name, tp", [("down_proj", 3), ("o_proj", 3), ("gate_up_proj", 3),
                                      ("qkv_proj", 3), ("embed_tokens", 7), ("qkv_proj", 64)])
def test_what_does_not_divide_says_so(name: str, tp: int) -> None:
    assert share(LLAMA, name, tp).divides is False


@pytest.mark.parametrize("heads, kv_heads, tp, divides", [
    (32, 8, 1, True), (32, 8, 8, True), (32, 8, 16, True), (32, 8, 3, False), (64, 8, 64, True),
    (14, 2, 7, False), (14, 2, 2, True), (14, 2, 14, True), (28, 4, 7, False), (32, 32, 32, True),
    (40, 8, 20, False), (24, 8, 12, False)])
def test_kv_heads_divide_or_are_divided(heads: int, kv_heads: int, tp: int, divides: bool) -> None:
    """QKVParallelLinear: total kv heads % tp, or tp % total kv heads, must be 0."""
    assert heads_divide(heads, kv_heads, tp) is divides


@pytest.mark.parametrize("kv_heads, tp, held", [(8, 1, 8), (8, 8, 1), (8, 16, 1), (2, 4, 1),
                                                (4, 2, 2)])
def test_a_rank_holds_at_least_one_kv_head(kv_heads: int, tp: int, held: int) -> None:
    assert kv_heads_per_rank(kv_heads, tp) == held


def test_attention_has_no_weight_of_its_own() -> None:
    assert NO_SHARD == (0, 0, 0, 0, (), True)


# Whole answers.


@pytest.mark.parametrize("name", [name for name, row in golden_rows().items()
                                  if row["case"].get("tp_size", 1) > 1
                                  and row["expect"]["layers"]][::6])
def test_sizes_are_the_engine_s(name: str) -> None:
    """n and k of every layer of golden rows with tensor parallelism."""
    row = golden_rows()[name]
    structure = model_structure(Checkpoint("x", "mapping", row["case"]["config"]))
    modules = {module.path: module for module in structure.modules}
    for layer in row["expect"]["layers"]:
        if layer["module"] != "Attention":
            found = shard(modules[layer["path"]], row["case"]["tp_size"])
            assert (found.n, found.k, found.divides) == (layer["n"], layer["k"], True)


def test_heads_that_do_not_divide() -> None:
    """Rows llama70b/QUANT/CAPABILITY/tp3 have these words."""
    error = ask(None, tp=3).trace.error
    assert error is not None
    assert (error.stage, error.type, error.message) == (
        "shapes under TP", "ValidationError",
        "Total number of attention heads (32) must be divisible by tensor parallel size (3).")


@pytest.mark.parametrize("model, tp, words, layer", [
    (QWEN_0_5B, 7, "151936 is not divisible by 7", "model.embed_tokens"),
    ({**LLAMA, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 40,
      "intermediate_size": 14080, "vocab_size": 32001}, 5, "32064 is not divisible by 5",
     "model.embed_tokens"),
    ({**LLAMA, "intermediate_size": 14337}, 2, "", "model.layers.0.mlp.gate_up_proj"),
    ({**LLAMA, "intermediate_size": 14344}, 16, "", "model.layers.0.mlp.gate_up_proj")])
def test_other_sizes_end_in_an_assertion(
    model: dict[str, Any], tp: int, words: str, layer: str
) -> None:
    """distributed/utils.py:ensure_divisibility has words; MergedColumnParallelLinear asserts
    without text. Both are the engine's own answers."""
    error = ask(None, model=model, tp=tp).trace.error
    assert error is not None
    assert (error.stage, error.type, error.message, error.layer) == (
        "shapes under TP", "AssertionError", words, layer)


@pytest.mark.parametrize(("features", "remedy"), [
    (14336, "Use a tensor parallel size that leaves whole groups of 128 here: 1, 2, 4, 8, 16."),
    (29568, "Use a tensor parallel size that leaves whole groups of 128 here: 1."),
    (4304, "No tensor parallel size leaves whole groups of 128 in 4304 features: quantize the "
           "model again, without this layer or in another format.")])
def test_a_remedy_names_the_ranks_that_leave_whole_groups(features: int, remedy: str) -> None:
    """14336 is 112 groups of 128, 29568 is 231, and 4304 is 33 and 5/8."""
    assert whole_pieces(features, 128, "groups") == remedy
