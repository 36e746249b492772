"""The engine's flags about experts on the command line, and experts in the text of an answer."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from quantplan.tables.errors import UsageError

from quantplan.cli import quantplan

ASKED = ("explain", "qwen3-30b-a3b", "--capability", "9.0", "--engine", "vllm@0.32.0")


def answer(*arguments: str) -> str:
    """Return the output, without line breaks, of an explanation that starts."""
    result = CliRunner().invoke(quantplan, [*ASKED, *arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_table_shows_the_class_and_its_mode() -> None:
    assert "mlp.experts.routed_experts 48 TritonExperts W16A16" in answer()


def test_the_flags_reach_the_answer_as_the_engine_spells_them() -> None:
    """config/kernel.py lowers the backend's name and takes dashes for underscores."""
    out = answer("--moe-backend", "Flashinfer-CUTLASS", "--ep", "--tp", "2", "--dp", "2")
    assert "mlp.experts.routed_experts 48 FlashInferExperts W16A16" in out
    assert "--moe-backend flashinfer_cutlass" in out


def test_a_backend_that_the_engine_does_not_know() -> None:
    result = CliRunner().invoke(quantplan, [*ASKED, "--moe-backend", "cuda"])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith("--moe-backend cuda; wanted auto, triton, ")


@pytest.mark.parametrize("name, told", [
    ("FlashInferExperts", "mlp.experts.routed_experts: it could run, but TritonExperts comes first "
     "in the list"),
    ("trtllmbf16expertsmod", "mlp.experts.routed_experts: rejected: "),
    ("TritonExperts", "mlp.experts.routed_experts: it is the one chosen")])
def test_why_not_another_class(name: str, told: str) -> None:
    assert told in answer("--why-not", name)
