"""The budget asked again: levers, choices, users and formats against the budgets they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import validate
from quantplan.planner.levers import Lever
from quantplan.tables.errors import UsageError

from quantplan import budget, choices, fits, formats, levers, reports, users
from quantplan.cli import quantplan

MODEL = "llama-3.1-8b"
ENGINES = ("vllm", "sglang")


@pytest.mark.parametrize("engine", ENGINES)
def test_levers_are_budgets_with_one_change(engine: str) -> None:
    today = budget(MODEL, gpu="h100", engine=engine)
    found = levers(MODEL, gpu="h100", engine=engine)
    by_id = {lever.id: lever for lever in found}
    fp8 = "kv-fp8" if engine == "vllm" else "sglang-kv-fp8"
    wanted = budget(MODEL, gpu="h100", engine=engine,
                    kv_cache_dtype="fp8" if engine == "vllm" else "fp8_e4m3")
    assert by_id[fp8].kv_tokens == wanted.kv_tokens
    assert by_id[fp8].gained_tokens == wanted.kv_tokens - today.kv_tokens
    assert [lever.gained_bytes for lever in found] == sorted(
        (lever.gained_bytes for lever in found), reverse=True)
    assert all(lever.gained_bytes > 0 for lever in found)


def test_what_the_engine_refuses_is_no_lever() -> None:
    """Below 8.9 vLLM runs an FP8 cache only where a backend takes it; at 7.5 none of Llama's do."""
    refused = budget(MODEL, gpu="t4", kv_cache_dtype="fp8").refusal
    offered: set[Lever] = {lever for lever in levers(MODEL, gpu="t4") if lever.id == "kv-fp8"}
    assert bool(refused) is not bool(offered)


def test_every_way_to_share_four_gpus() -> None:
    """The divisors of 4: three sizes of tp alone, and the pairs with pp and dp."""
    found = choices(MODEL, 4, gpu="a100-80g")
    assert {(c.tp, c.pp, c.dp) for c in found} == {
        (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4)}
    for choice in found:
        asked: Any = budget(MODEL, gpu="a100-80g", tp=choice.tp, pp=choice.pp, dp=choice.dp)
        assert choice.kv_tokens == asked.kv_tokens * choice.dp


def test_a_way_that_does_not_start_says_why() -> None:
    """32 heads do not divide over 3 ranks (config/model.py:verify_with_parallel_config)."""
    three = next(c for c in choices(MODEL, 3, gpu="h100") if c.tp == 3)
    assert "must be divisible by tensor parallel size (3)" in str(three.problem)


@pytest.mark.parametrize("engine, flag, length", [
    ("vllm", "gpu_memory_utilization", "max_model_len"),
    ("sglang", "mem_fraction_static", "context_length")])
def test_the_smallest_share_is_the_smallest(engine: str, flag: str, length: str) -> None:
    found = users(MODEL, 32, 8192, gpu="h100", engine=engine)
    assert found.share is not None

    def served(share: float) -> float:
        options: Any = {flag: share, length: 8192}
        asked = budget(MODEL, gpu="h100", engine=engine, **options)
        return asked.requests_of(8192) if asked.fits else 0

    assert served(found.share) >= 32 > served(found.share - 0.001)


def test_more_users_than_a_gpu_holds() -> None:
    assert users(MODEL, 10_000, 131_072, gpu="h100").share is None
    with pytest.raises(UsageError, match="at least one user"):
        users(MODEL, 0, 8192, gpu="h100")


def test_formats_name_mode_and_kernels_of_the_gpu() -> None:
    """FP8 weights on 8.0 run through Marlin, weight-only; on 9.0 in W8A8
    (model_executor/layers/quantization/fp8.py)."""
    on_a100 = {row.format: row for row in formats(MODEL, gpu="a100-80g")}
    on_h100 = {row.format: row for row in formats(MODEL, gpu="h100")}
    assert (on_a100["fp8"].modes, on_a100["fp8"].weight_only) == ("W8A16 Marlin", True)
    assert (on_h100["fp8"].modes, on_h100["fp8"].weight_only) == ("W8A8 CUTLASS", False)
    assert on_a100["bf16"].weight_bytes == budget(MODEL, gpu="a100-80g").weights.bytes


def test_fits_are_budgets_by_gpu() -> None:
    found = fits(MODEL, gpus=["4090", "h100"])
    assert [(fit.engine, fit.gpu.name[-4:]) for fit in found][::2] == [
        ("vllm", "4090"), ("vllm", "HBM3")]
    for fit in found:
        card = "4090" if fit.gpu.name.endswith("4090") else "h100"
        alone = budget(MODEL, gpu=card, engine=fit.engine)
        if alone.refusal is None:
            assert fit.kv_tokens == alone.kv_tokens
        else:
            assert (fit.kv_tokens, fit.problem) == (None, alone.refusal.hint)


def test_a_gpu_that_is_too_small_says_what_is_missing() -> None:
    found = fits("llama-3.1-70b", engines=["vllm"], gpus=["h100"])
    assert [fit.kv_tokens for fit in found] == [None]
    assert str(found[0].problem).endswith("GiB are missing")


def test_fits_follow_their_schema() -> None:
    from quantplan.reports.memory_answers_text import fits_data

    schema = json.loads((Path(str(reports.__file__)).parent / "schema/fit.v1.json").read_text())
    validate(fits_data(fits("llama-3.1-70b", gpus=["4090", "h200"])), schema)


@pytest.mark.parametrize("engine, name", [("vllm", "budget.v2"), ("sglang", "sglang-budget.v1")])
@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "qwen2.5-0.5b"])
def test_answers_follow_the_schema_of_the_budget(engine: str, name: str, model: str) -> None:
    result = CliRunner().invoke(quantplan, [
        "budget", model, "--gpu", "h100", "--engine", engine, "--levers", "--formats", "--gpus",
        "2", "--users", "4", "--context", "4096", "--format", "json"])
    found = json.loads(result.output)
    assert [key for key in ("levers", "formats", "choices", "users") if found[key]] == [
        "levers", "formats", "choices", "users"]
    validate(found, json.loads(
        (Path(str(reports.__file__)).parent / f"schema/{name}.json").read_text()))


def test_experts_are_spread_over_every_data_parallel_rank() -> None:
    """vllm 0.32.0 fused_moe/config.py:FusedMoEParallelConfig.make: 128 experts over tp * dp ranks,
    whole ones with expert parallelism; each is 3 x 2,048 x 768 values of 2 bytes in 48 layers."""
    expert = 48 * 3 * 2048 * 768 * 2
    for dp, tp in ((1, 4), (2, 2), (4, 1)):
        for whole in (False, True):
            found = budget("qwen3-30b-a3b", gpu="h200", tp=tp, dp=dp, enable_expert_parallel=whole)
            (line,) = (x for x in found.weights.lines if x.name == "expert weights")
            assert line.bytes == 128 // 4 * expert


def test_a_context_beyond_the_model_s_is_told() -> None:
    from quantplan.reports.memory_answers_text import users_text

    found = users(MODEL, 1, 200_000, gpu="h200")
    assert found.share is None
    assert "not with the whole GPU (vllm 0.32.0 does not start (config fields): User-specified " \
        "max_model_len (200000) is greater than" in users_text(found)


@pytest.mark.parametrize("modes, wanted", [
    ("W4A16 Machete", True), ("W16A16, experts W4A16 Triton", True), ("W8A8 CUTLASS", False),
    ("W4A8 Humming, experts W4A16 Marlin", False), ("W16A16, experts W16A16 Triton", False)])
def test_weight_only_is_16_bit_arithmetic_under_smaller_weights(modes: str, wanted: bool) -> None:
    from quantplan.planner.formats_compared import is_weight_only

    assert is_weight_only(modes) == wanted


def test_a_gpu_that_does_not_start_says_why_after_the_engine() -> None:
    from quantplan.reports.memory_answers_text import fits_text

    text = fits_text(fits("gpt-oss-20b", engines=["vllm"], gpus=["t4"]))
    assert "no: (capability gate): The quantization method" in text
