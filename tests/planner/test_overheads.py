"""Overheads of the profile run against public start-up logs and the engine's sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from known_models import model
from memory_truth import model_config, truth_row, truth_rows
from quantplan.dispatch.facts import Checkpoint, Deployment, Gpu, MemoryFlags
from quantplan.dispatch.families import model_structure
from quantplan.planner.lines import BudgetLine
from quantplan.planner.overheads import overhead_lines
from quantplan.planner.serving import Serving, own_context, serving
from quantplan.tables.errors import NotKnownError
from quantplan.tables.memory_loading import memory_rules

from quantplan import budget

GIB = 2**30
H100 = Gpu("NVIDIA H100 80GB HBM3", 90, 132)
NOT_PROFILE = ("non-torch memory", "CUDA graphs, estimated", "token counts of requests")
ENCODER_GIB = 0.11
"""What the vision tower of mem-039 adds: its line says that it is not known."""
PROFILED = [row["id"] for row in truth_rows()
            if row["engine"] == "vllm" and row["version"] and "activations_gib" in row["printed"]]


def served(checkpoint: Checkpoint, *, version: str = "0.32.0", tp: int = 1, gpu: Gpu = H100,
           memory_gib: float = 79.19, env: dict[str, str] | None = None, **flags: Any) -> Serving:
    """Return what the engine runs with."""
    return serving(memory_rules("vllm", version), checkpoint, model_structure(checkpoint),
                   deployment=Deployment(tp=tp, env=env or {}), flags=MemoryFlags(**flags), gpu=gpu,
                   memory_bytes=round(memory_gib * GIB))


def of_row(row: dict[str, Any]) -> tuple[BudgetLine, ...]:
    """Return the overheads of a row's run."""
    asked = row["asked"]
    checkpoint = Checkpoint(row["model"], "mapping", model_config(row["model"]) or {})
    tp, pp = asked.get("tp", 1), asked.get("pp", 1)
    found = served(checkpoint, version=row["version"], tp=tp, pp=pp,
                   max_model_len=asked["max_model_len"])
    dtype = "float32" if asked.get("dtype") == "float32" else "bfloat16"
    return overhead_lines(model_structure(checkpoint), None, found, gpu=H100, dtype=dtype,
                          deployment=Deployment(tp=tp), flags=MemoryFlags(pp=pp))


def largest(figure: float | list[float]) -> float:
    """Return the figure of the worker that printed most."""
    return max(figure) if isinstance(figure, list) else figure


@pytest.mark.parametrize("id_", PROFILED)
def test_the_profile_runs_peak_is_the_logged_one(id_: str) -> None:
    """Within a hundredth of a GiB, also of rows that no constant was fitted to."""
    row = truth_row(id_)
    profile = sum(line.bytes for line in of_row(row) if line.name not in NOT_PROFILE)
    allowed_gib = ENCODER_GIB if id_ == "mem-039" else 0.01
    printed = largest(row["printed"]["activations_gib"])
    assert printed == pytest.approx(profile / GIB, abs=allowed_gib)


@pytest.mark.parametrize("id_", PROFILED)
def test_non_torch_memory_is_within_its_uncertainty(id_: str) -> None:
    line = next(line for line in of_row(truth_row(id_)) if line.name == "non-torch memory")
    printed = largest(truth_row(id_)["printed"]["non_torch_gib"])
    assert abs(printed * GIB - line.bytes) <= line.plus_minus_bytes + 0.005 * GIB


# Model Runner V2: v1/worker/gpu/sample/sampler.py and penalties.py of 0.32.0.


def lines(**options: Any) -> dict[str, int]:
    """Return the overheads of Llama-3.1-8B on an H100 by name."""
    checkpoint = model("llama-3.1-8b")
    found = served(checkpoint, **options)
    return {line.name: line.bytes for line in overhead_lines(
        model_structure(checkpoint), None, found, gpu=H100, dtype="bfloat16",
        deployment=Deployment(), flags=MemoryFlags())}


def test_the_second_runner_samples_in_place_and_counts_tokens() -> None:
    found = lines()
    assert found["profile run: layers"] == 8192 * (43_008 * 2 + 4096 * 2 * 3.75) + 2**25
    assert found["token counts of requests"] == 1024 * (128_256 + 4_008) * 4
    first = lines(env={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert "token counts of requests" not in first
    assert first["profile run: sampler"] == (
        1024 * 128_256 * 14 + 132 * 128_256 * 4 + (8192 + 2048) * 4096 * 2 + 2**25)


# Defaults: engine/arg_utils.py and config/vllm.py.


@pytest.mark.parametrize(("gpu", "gib", "flags", "wanted"), [
    (H100, 79.19, {}, (1024, 8192, 51, 512)),
    (Gpu("NVIDIA GeForce RTX 4090", 89), 23.5, {}, (256, 2048, 51, 512)),
    (Gpu("NVIDIA B200", 100), 178.4, {}, (1024, 16384, 83, 1024)),
    (H100, 79.19, {"max_num_seqs": 16}, (16, 8192, 7, 32)),
    (H100, 79.19, {"max_model_len": 2, "max_num_seqs": 4}, (4, 8, 4, 8)),
    (H100, 79.19, {"max_num_batched_tokens": 300}, (300, 300, 37, 288)),
    (H100, 79.19, {"enforce_eager": True}, (1024, 8192, 0, None)),
])
def test_scheduler_sizes_and_graphs(
    gpu: Gpu, gib: float, flags: dict[str, Any], wanted: tuple[int, int, int, int | None]
) -> None:
    found = served(model("llama-3.1-8b"), gpu=gpu, memory_gib=gib, **flags)
    largest = found.graph_tokens[-1] if found.graph_tokens else None
    assert (found.max_num_seqs, found.max_num_batched_tokens, len(found.graph_tokens),
            largest) == wanted


@pytest.mark.parametrize(("changes", "tokens"), [
    ({}, 131_072), ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                       "original_max_position_embeddings": 32768}}, 131_072),
    ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
])
def test_the_models_own_context(changes: dict[str, Any], tokens: int) -> None:
    """config/model.py:_get_and_verify_max_len."""
    assert own_context(model("llama-3.1-8b", **changes)) == tokens


def test_drafts_without_a_model_take_nothing_and_others_are_not_known() -> None:
    plain = budget("llama-3.1-8b", gpu_mem="24GiB")
    ngram = budget("llama-3.1-8b", gpu_mem="24GiB", speculative_config={"method": "ngram"})
    assert ngram.kv_bytes == plain.kv_bytes
    with pytest.raises(NotKnownError, match=r"a speculative draft \(eagle3\)"):
        budget("llama-3.1-8b", gpu_mem="24GiB", speculative_config={"method": "eagle3"})


def test_an_older_version_has_its_own_memory_rules() -> None:
    """0.19.0 has no table of kernels; it takes 0.9 and does not subtract its graphs."""
    found = budget("llama-3.1-8b", gpu="h100", engine_version="0.19.0", assume_nearest=True)
    assert (found.version, found.utilization) == ("0.19.0", 0.9)
    assert [line.name for line in found.overheads] == ["profile run: sampler", "non-torch memory"]
    noted = {note.id for note in found.notes}
    assert {"graphs-not-subtracted", "own-memory-rules", "assumed-version"} <= noted


def test_a_gpu_that_others_use_is_refused_in_the_engines_words(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """v1/worker/utils.py:request_memory."""
    used = Gpu("NVIDIA GeForce RTX 4090", 89, 128, 24 * GIB, 20 * GIB, "driver")
    monkeypatch.setattr("quantplan.memory.open_gpu", lambda gpu, capability: used)
    refusal = budget("qwen3-0.6b", gpu="4090").refusal
    assert refusal is not None
    assert refusal.message == (
        "Free memory on device cuda:0 (20.00/24.00 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 22.08 GiB). Decrease GPU memory utilization or reduce GPU memory used "
        "by other processes.")
    assert refusal.hint == "Pass --gpu-memory-utilization 0.83 or less."
