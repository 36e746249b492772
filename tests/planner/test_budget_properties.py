"""Laws of the budget that hold for every model, format and GPU."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from known_models import model
from quantplan.dispatch.facts import Checkpoint, MemoryFlags
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.planner.budget import make_budget
from quantplan.planner.weights import weigh
from quantplan.tables.errors import UsageError
from quantplan.tables.load import read_table

FORMATS = st.sampled_from([row["id"] for row in read_table("formats/formats")["formats"]])
MEMORY = st.integers(min_value=2**30, max_value=2**38)
LAW = settings(max_examples=60, deadline=None)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    """Return a small dense model in some format."""
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    family = draw(st.sampled_from(["llama-3.1-8b", "qwen2.5-7b", "qwen3-8b"]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4, 8]))
    sizes: dict[str, Any] = {
        # Whole groups of 128 inputs, so that every format can store it.
        "hidden_size": 128 * heads,
        "intermediate_size": 128 * draw(st.integers(1, 150)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": draw(st.integers(100, 200_000)),
        "tie_word_embeddings": draw(st.booleans()),
    }
    return as_format(model(family, **sizes), draw(FORMATS))


def rank_bytes(checkpoint: Checkpoint, tp: int) -> int | None:
    """Return the weight bytes of a rank, None where the model does not divide."""
    try:
        return weigh(checkpoint, model_structure(checkpoint), tp=tp).bytes
    except UsageError:
        return None


@LAW
@given(checkpoints(), st.sampled_from([1, 2, 4, 8]))
def test_twice_the_ranks_never_raise_a_ranks_weights(checkpoint: Checkpoint, tp: int) -> None:
    one, two = rank_bytes(checkpoint, tp), rank_bytes(checkpoint, 2 * tp)
    if one is not None and two is not None:
        assert one // 2 <= two <= one


@LAW
@given(checkpoints(), MEMORY, MEMORY)
def test_more_memory_never_holds_fewer_tokens(checkpoint: Checkpoint, a: int, b: int) -> None:
    structure = model_structure(checkpoint)
    less, more = (make_budget(checkpoint, structure, memory_bytes=size)
                  for size in sorted((a, b)))
    assert less.kv_tokens <= more.kv_tokens
    assert less.missing_bytes >= more.missing_bytes
    for low, high in zip(less.what_if, more.what_if, strict=True):
        assert low.kv_tokens <= high.kv_tokens


@LAW
@given(checkpoints(), MEMORY, st.floats(min_value=0.01, max_value=1))
def test_lines_sum_to_totals(checkpoint: Checkpoint, memory: int, utilization: float) -> None:
    structure = model_structure(checkpoint)
    plain = make_budget(checkpoint, structure, memory_bytes=memory,
                        flags=MemoryFlags(gpu_memory_utilization=utilization)).to_dict()
    weight_bytes = plain["weights"]["bytes"]
    assert sum(line["bytes"] for line in plain["weights"]["lines"]) == weight_bytes
    overhead_bytes = plain["overheads"]["bytes"]
    assert sum(line["bytes"] for line in plain["overheads"]["lines"]) == overhead_bytes
    cache = plain["kv_cache"]
    assert weight_bytes + overhead_bytes + cache["bytes"] == plain["engine_memory"]["bytes"]
    assert sum(line["bytes"] for line in cache["lines"]) == cache["bytes_per_token"]
    names = ("linear_parameters", "other_parameters")
    assert sum(plain["model"][name] for name in names) == plain["model"]["total_parameters"]
    block = cache["block_tokens"] * cache["bytes_per_token"]
    used = cache["tokens"] * cache["bytes_per_token"]
    assert used <= max(0, cache["bytes"]) < used + block
    assert plain["fits"] == (plain["missing_bytes"] == 0)


@LAW
@given(checkpoints(), st.sampled_from([1, 2, 4]))
def test_headers_and_sizes_agree(checkpoint: Checkpoint, tp: int) -> None:
    stored = Checkpoint("m", "folder", checkpoint.config, tensors=dict(checkpoint.tensors or {}))
    assert rank_bytes(stored, tp) == rank_bytes(checkpoint, tp)
