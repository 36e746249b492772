"""What SGLang's operators ask only when they run: the machine code of sglang-kernel 0.4.9 for
int8_scaled_mm, Triton's words in sglang issues 5871, 13471 and 38291 for FP8 experts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from quantplan.dispatch.summary import starts

from quantplan import explain

FP8 = "type fp8e4nv not supported in this architecture."
INT8 = "No implemented int8_scaled_mm for current compute capability."


def failing(model: object, capability: str, as_format: str | None = None) -> str | None:
    """Return the engine's words where the first forward fails."""
    trace = explain(model, engine="sglang", capability=capability,  # type: ignore[arg-type]
                    as_format=as_format).trace
    found = [f for f in trace.findings if f.id == "kernel-cannot-run"]
    assert (starts(trace) == "no") == bool(found)
    return found[0].message if found else None


@pytest.mark.parametrize("capability, words", [
    ("8.0", FP8), ("8.6", FP8), ("8.9", None), ("9.0", None), ("12.0", None)])
def test_fp8_experts_on_gpus_without_fp8(capability: str, words: str | None) -> None:
    told = failing("qwen3-30b-a3b", capability, "fp8")
    assert told is None if words is None else words in str(told)


@pytest.mark.parametrize("capability, words", [
    ("8.0", None), ("8.9", None), ("9.0", None), ("10.0", INT8), ("12.0", INT8)])
def test_int8_beyond_hopper(capability: str, words: str | None) -> None:
    config = {**LLAMA, "quantization_config": quantization("ct-w8a8-int8")}
    told = failing(config, capability)
    assert told is None if words is None else words in str(told)
