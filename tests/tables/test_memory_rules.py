"""Memory rules by version, against the engine's sources of those versions."""

from __future__ import annotations

import pytest
from quantplan.tables.errors import NotKnownError
from quantplan.tables.memory_loading import memory_rules

GIB = 2**30


@pytest.mark.parametrize(("version", "utilization", "subtracted"), [
    ("0.15.0", 0.9, False), ("0.19.0", 0.9, False), ("0.20.0", 0.92, True),
    ("0.32.0", 0.92, True), ("0.33.0", 0.92, True)])
def test_share_of_the_gpu(version: str, utilization: float, subtracted: bool) -> None:
    """config/cache.py and envs.py of each version."""
    rules = memory_rules("vllm", version)
    assert rules.rule("gpu_memory_utilization").value == utilization
    assert rules.rule("cudagraph_estimate_subtracted").value is subtracted


def test_the_variable_turns_the_estimate_on_and_off() -> None:
    """envs.py:VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, which 0.17 does not have."""
    on = {"env.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1"}
    off = {"env.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}
    name = "cudagraph_estimate_subtracted"
    assert memory_rules("vllm", "0.19.0").rule(name, on).value is True
    assert memory_rules("vllm", "0.32.0").rule(name, off).value is False
    assert memory_rules("vllm", "0.17.0").rule(name, on).value is False


@pytest.mark.parametrize(("version", "gib", "gpu", "tokens", "sequences"), [
    ("0.32.0", 179, "NVIDIA B200", 16384, 1024), ("0.27.0", 179, "NVIDIA B200", 8192, 1024),
    ("0.32.0", 79.19, "NVIDIA H100 80GB HBM3", 8192, 1024),
    ("0.32.0", 79.25, "NVIDIA A100-SXM4-80GB", 2048, 256),
    ("0.32.0", 23.5, "NVIDIA GeForce RTX 4090", 2048, 256)])
def test_scheduler_defaults_of_a_server(
    version: str, gib: float, gpu: str, tokens: int, sequences: int
) -> None:
    """engine/arg_utils.py:EngineArgs.get_batch_defaults."""
    facts = {"gpu.memory_bytes": round(gib * GIB), "gpu.name": gpu}
    value = memory_rules("vllm", version).rule("batch_defaults", facts).value
    assert (value["server_tokens"], value["sequences"]) == (tokens, sequences)


def test_versions_older_than_the_rules_are_not_known() -> None:
    with pytest.raises(NotKnownError, match=r"memory rules of vllm 0\.14\.1"):
        memory_rules("vllm", "0.14.1")


def test_a_rule_without_a_row_is_named_with_the_facts() -> None:
    with pytest.raises(NotKnownError, match="memory rule colour of vllm"):
        memory_rules("vllm", "0.32.0").rule("colour", {"tp": 1})
