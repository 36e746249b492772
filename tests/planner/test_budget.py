"""The budget: what it adds up to, when it does not fit, and its JSON form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from known_models import model
from quantplan.dispatch.bundled import bundled_checkpoint, bundled_models
from quantplan.dispatch.facts import Checkpoint, Deployment, MemoryFlags
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.planner.budget import Budget, make_budget
from quantplan.tables.errors import NotKnownError, UsageError

from quantplan import reports

GIB = 2**30
SCHEMA = json.loads((Path(reports.__file__).parent / "schema" / "budget.v2.json").read_text())


def budget(
    checkpoint: Checkpoint, memory_bytes: int = 24 * GIB, *, tp: int = 1,
    utilization: float | None = None, kv_cache_dtype: str = "auto",
    flags: dict[str, Any] | None = None, **options: Any,
) -> Budget:
    """Return the budget of a checkpoint."""
    return make_budget(
        checkpoint, model_structure(checkpoint), memory_bytes=memory_bytes,
        deployment=Deployment(tp=tp, kv_cache_dtype=kv_cache_dtype),
        flags=MemoryFlags(gpu_memory_utilization=utilization, **(flags or {})), **options)


# Llama-3.1-8B on 24 GiB x 0.92 by hand: weights in 16 bits and F32 per tensor, F32 per 128x128
# block, 16-bit scale per 128 inputs, the same with a 4-bit zero point; a rotary table of 131,072 x
# 128 x 2 bytes, 32 x 4 scales of attention in blocks of 512 bytes. Overheads: 2,048 tokens x
# (43,008 + 3.75 x 4,096) x 2 bytes + 32 MiB; 256 x (128,256 + 4,008) x 4 bytes; 0.25 GiB;
# 0.228 GiB + 32 x 0.01804 GiB.
LAYERS_BYTES = 2048 * (43_008 * 2 + 30_720) + 2**25
COUNTS_BYTES = 256 * (128_256 + 4_008) * 4
OTHERS_BYTES = round(0.25 * GIB)
GRAPHS_BYTES = round(0.228 * GIB) + 32 * round(0.01804 * GIB)
OVERHEAD_BYTES = LAYERS_BYTES + COUNTS_BYTES + OTHERS_BYTES + GRAPHS_BYTES
LOADED_BYTES = 131_072 * 128 * 2 + 32 * 4 * 512
WEIGHT_BYTES = 16_060_522_496 + LOADED_BYTES
ENGINE_BYTES = 23_708_219_474
ACCEPTED = [
    ("bf16", "bf16", "16.09", "14.99"), ("fp8", "fp8 per-tensor", "9.11", "8.49"),
    ("fp8-block", "fp8 block 128x128", "9.12", "8.49"), ("w4a16", "int4 g128 sym", "5.74", "5.35"),
    ("awq", "int4 g128 asym", "5.77", "5.37"),
]


@pytest.mark.parametrize("row", range(5))
def test_llama_8b_on_24_gib_to_the_digit(row: int) -> None:
    found = budget(model("llama-3.1-8b")).what_if[row]
    shown = (found.format, found.title, f"{found.weight_bytes / 1e9:.2f}",
             f"{found.weight_bytes / GIB:.2f}")
    assert shown == ACCEPTED[row]
    assert found.left_bytes == ENGINE_BYTES - OVERHEAD_BYTES - found.weight_bytes
    assert found.kv_tokens == found.left_bytes // (16 * 128 * 1024) * 16


def test_llama_8b_counts_its_parameters() -> None:
    found = budget(model("llama-3.1-8b"))
    assert (found.linear_parameters, found.other_parameters, found.total_parameters) == (
        6_979_321_856, 1_050_939_392, 8_030_261_248)
    assert found.kv.bytes_per_token == 128 * 1024


def test_every_overhead_is_a_line_that_is_subtracted() -> None:
    found = budget(model("llama-3.1-8b"))
    assert [line.bytes for line in found.overheads] == [
        LAYERS_BYTES, COUNTS_BYTES, OTHERS_BYTES, GRAPHS_BYTES]
    assert found.kv_bytes == ENGINE_BYTES - WEIGHT_BYTES - OVERHEAD_BYTES
    assert found.kv_tokens == found.kv_bytes // (16 * 131_072) * 16


def test_eager_has_no_graphs() -> None:
    found = budget(model("llama-3.1-8b"), flags={"enforce_eager": True})
    assert found.kv_bytes == ENGINE_BYTES - WEIGHT_BYTES - OVERHEAD_BYTES + GRAPHS_BYTES


def test_a_cache_as_given_skips_the_profile() -> None:
    """v1/worker/gpu_worker.py:Worker.determine_available_memory returns it as it is."""
    found = budget(model("llama-3.1-8b"), flags={"kv_cache_memory_bytes": 4 * GIB})
    assert (found.kv_bytes, found.kv_tokens, found.fits) == (4 * GIB, 32_768, True)
    assert found.plus_minus_bytes == 0
    assert not budget(model("llama-3.1-8b"), flags={"kv_cache_memory_bytes": 9 * GIB}).fits


def test_a_length_that_was_asked_for_must_fit() -> None:
    """v1/core/kv_cache_utils.py:_check_enough_kv_cache_memory: without it, its default is noted."""
    room = budget(model("llama-3.1-8b")).largest_context
    assert budget(model("llama-3.1-8b"), flags={"max_model_len": room}).fits
    assert not budget(model("llama-3.1-8b"), flags={"max_model_len": room + 1}).fits
    assert budget(model("llama-3.1-8b"), flags={"max_model_len": -1}).max_model_len == room


@pytest.mark.parametrize("row", range(5))
def test_a_comparison_is_the_budget_of_the_hypothetical_checkpoint(row: int) -> None:
    for tp in (1, 2):
        compared = budget(model("llama-3.1-8b"), tp=tp).what_if[row]
        made = budget(as_format(model("llama-3.1-8b"), compared.format), tp=tp)
        assert (compared.weight_bytes, compared.left_bytes, compared.kv_tokens) == (
            made.weights.bytes, made.kv_bytes, made.kv_tokens)


def test_the_engines_share_is_rounded_up() -> None:
    # vllm 0.32.0 v1/worker/utils.py:request_memory: ceil(total_memory * gpu_memory_utilization).
    assert budget(model("llama-3.1-8b")).engine_memory.bytes == 23_708_219_474
    assert budget(model("llama-3.1-8b"), utilization=1).engine_memory.bytes == 24 * GIB


def test_figures_from_a_label_are_marked_so() -> None:
    assert budget(model("llama-3.1-8b")).engine_memory.kind == "spec"
    found = budget(model("llama-3.1-8b"), memory_source="NVML", memory_kind="measured")
    assert (found.memory.source, found.memory.kind, found.engine_memory.kind) == (
        "NVML", "measured", "measured")
    assert found.weights.lines[0].kind == found.kv.lines[0].kind == "exact"


def test_what_does_not_fit_says_how_much_is_missing() -> None:
    found = budget(model("llama-3.1-8b"), 16 * GIB)
    assert not found.fits
    assert found.kv_tokens == 0
    least = WEIGHT_BYTES + OVERHEAD_BYTES + 2 * 16 * 131_072
    assert found.missing_bytes == least - found.engine_memory.bytes
    assert [row.fits for row in found.what_if] == [False, True, True, True, True]
    exact = budget(model("llama-3.1-8b"), least, utilization=1)
    assert exact.fits and exact.missing_bytes == 0 and exact.kv_tokens == 32
    assert not budget(model("llama-3.1-8b"), least - 1, utilization=1).fits


INCOMPLETE = [row["id"] for row in bundled_models()
              if not model_structure(Checkpoint("", "mapping", row["config"])).complete]


@pytest.mark.parametrize("name", INCOMPLETE)
def test_experts_and_latent_attention_have_no_budget_yet(name: str) -> None:
    checkpoint = bundled_checkpoint(name)
    assert checkpoint is not None
    with pytest.raises(NotKnownError, match=r"^the memory of a \w+\.|^weight format: "):
        budget(checkpoint, 80 * GIB, tp=8)


def test_a_format_that_does_not_divide_is_told_in_its_row() -> None:
    # 1152 / 2 inputs are 4.5 groups of 128, and 4.5 blocks.
    rows = budget(model("llama-3.1-8b", intermediate_size=1152), tp=2).what_if
    assert [row.problem is None for row in rows] == [True, True, False, False, False]
    assert "does not divide" in str(rows[2].problem)


def test_other_formats_are_compared_with_the_requested_cache() -> None:
    made = as_format(model("llama-3.1-8b"), "ct-fp8-static")
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    made.config["quantization_config"]["kv_cache_scheme"] = scheme
    assert budget(made).kv.bytes_per_token == 64 * 1024
    assert {row.kv_bytes_per_token for row in budget(made).what_if} == {128 * 1024}
    assert {row.kv_bytes_per_token for row in budget(made, kv_cache_dtype="fp8").what_if} == {
        64 * 1024}


def test_other_formats_are_served_in_16_bits() -> None:
    found = budget(model("llama-3.1-8b"), 80 * GIB, dtype="float32")
    assert found.weights.bytes == 4 * 8_030_261_248 + 131_072 * 128 * 4 + 32 * 4 * 512
    assert found.what_if[0].weight_bytes == WEIGHT_BYTES


@pytest.mark.parametrize("options, named", [
    ({"memory_bytes": 0}, "GPU memory; wanted a positive number of bytes; found 0"),
    ({"memory_bytes": -1}, "GPU memory"),
    ({"memory_bytes": 2.4e10}, "GPU memory"),
    ({"memory_bytes": True}, "GPU memory"),
    ({"utilization": 0}, "utilization; wanted more than 0 and at most 1; found 0"),
    ({"utilization": 1.01}, "utilization"),
    ({"utilization": float("nan")}, "utilization"),
    ({"utilization": "0.9"}, "utilization"),
    ({"tp": 0}, "tensor parallel size; wanted a positive integer; found 0"),
    ({"tp": 2.0}, "tensor parallel size"),
    ({"tp": 3}, "does not divide over 3 ranks"),
    ({"dtype": "int8"}, "dtype 'int8'"),
])
def test_options_that_cannot_be_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        budget(model("llama-3.1-8b"), **options)


CASES: list[tuple[Checkpoint, int, dict[str, Any]]] = [
    (model("llama-3.1-8b"), 24 * GIB, {}),
    (model("llama-3.1-8b"), 8 * GIB, {}),
    (as_format(model("qwen2.5-7b"), "gptq"), 12 * GIB, {"tp": 4, "kv_cache_dtype": "fp8"}),
    (model("llama-3.1-8b", intermediate_size=1152, sliding_window=4096), 24 * GIB, {"tp": 2}),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_json_form_follows_the_shipped_schema(case: int) -> None:
    checkpoint, memory_bytes, options = CASES[case]
    plain = budget(checkpoint, memory_bytes, **options).to_dict()
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(json.dumps(plain)), SCHEMA)


def test_the_schema_refuses_what_it_does_not_name() -> None:
    plain = budget(model("llama-3.1-8b")).to_dict()
    with pytest.raises(jsonschema.ValidationError, match="Additional properties"):
        jsonschema.validate({**plain, "more": 1}, SCHEMA)
