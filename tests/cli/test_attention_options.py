"""The engine's attention flags on the command line: read, repeated in the question, refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from quantplan.tables.errors import UsageError

from quantplan.cli import quantplan

ASKED = ("explain", "llama-3.1-8b", "--capability", "9.0")


def answer(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the output, without line breaks, of an explanation."""
    result = CliRunner().invoke(quantplan, [*ASKED, *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_the_flags_reach_the_answer() -> None:
    code, out = answer("--attention-backend", "triton_attn", "--block-size", "32",
                       "--kv-cache-dtype-skip-layers", "0", "--kv-cache-dtype-skip-layers", "1",
                       "--attention-config", '{"flash_attn_version": 2}')
    assert code == 0
    assert "TRITON_ATTN" in out
    assert ("bfloat16, --attention-backend triton_attn, --attention-config flash_attn_version=2, "
            "--kv-cache-dtype-skip-layers 0, --kv-cache-dtype-skip-layers 1, --block-size 32") in (
        out)


@pytest.mark.parametrize("given", ["{", "[1]", "3"])
def test_a_config_that_is_no_object(given: str) -> None:
    result = CliRunner().invoke(quantplan, [*ASKED, "--attention-config", given])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"--attention-config {given}; wanted a JSON object"


def test_a_backend_that_the_engine_does_not_know() -> None:
    """v1/attention/backends/registry.py:_AttentionBackendEnumMeta."""
    code, out = answer("--attention-backend", "xformers")
    assert code == 1
    assert "Unknown attention backend: 'XFORMERS'. Valid options are: FLASH_ATTN, " in out
