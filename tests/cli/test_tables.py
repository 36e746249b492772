"""`quantplan tables`: what its commands print and end with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from quantplan.tables.errors import NotKnownError, UsageError

from quantplan.cli import quantplan


def run(*arguments: str) -> Result:
    """Return the result of `quantplan tables` with ARGUMENTS; errors of ours are raised."""
    result = CliRunner().invoke(quantplan, ("tables", *arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_diff_tells_the_rows_and_why() -> None:
    """0.33.0 adds torch._scaled_mm at the end of the MXFP8 list."""
    result = run("diff", "vllm@0.32.0", "vllm@0.33.0")
    assert result.exit_code == 0
    head, rest = result.output.split("\n", maxsplit=1)
    assert head.startswith("vllm 0.32.0 -> 0.33.0: ")
    assert ("\n+ families[mxfp8].kernels: TorchMxFp8LinearKernel\n"
            "    0.33.0: torch._scaled_mm is the last of the MXFP8 list  "
            "[model_executor/kernels/linear/__init__.py:_POSSIBLE_MXFP8_KERNELS]\n") in rest


def test_diff_as_json() -> None:
    data = json.loads(run("diff", "vllm@0.33.0", "vllm@0.32.0", "--format", "json").output)
    assert (data["schema"], data["from"], data["to"]) == ("quantplan/tables-diff/1", "0.33.0",
                                                          "0.32.0")
    row = next(d for d in data["differences"] if d["item"] == "TorchMxFp8LinearKernel")
    assert row["kind"] == "removed"


def test_no_version_is_the_default() -> None:
    assert run("diff", "vllm", "vllm@0.32.0").output == "vllm 0.32.0 -> 0.32.0: 0 differences\n"


@pytest.mark.parametrize("arguments, error, words", [
    (("vllm@0.32.0", "sglang@0.5.22"), UsageError, "two engines; wanted two versions of one"),
    (("vllm@0.32.0", "vllm@0.1"), NotKnownError, "no table for vllm 0.1"),
    (("vllm@", "vllm@0.1"), UsageError, "vllm@; wanted vllm or sglang"),
])
def test_diff_of_what_cannot_be_compared(
    arguments: tuple[str, str], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        run("diff", *arguments)
