"""Expressions that Python's re and the engine's package regex read alike, and those they do not
(each compared with regex 2026)."""

from __future__ import annotations

import pytest
from quantplan.dispatch.expressions import search
from quantplan.tables.errors import CheckpointError, NotKnownError

NAME = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("pattern, fits", [
    (".*self_attn.*", True), (r"model\.layers\.\d+\.self_attn\.[qkv]_proj$", True),
    ("q_proj", False),
    (r".*layers\.{1}0", True), (r".*(?<!v)_proj", True), ("(?i)MODEL", True), (r"\w{3,}", True),
    (r"model[[.]layers", True)])
def test_what_both_read_alike(pattern: str, fits: bool) -> None:
    assert search(pattern, NAME) is fits


@pytest.mark.parametrize("pattern", [
    r"\p{L}+", "(?<layer>model)", "[[:alpha:]]+", "(?:model){e<=1}", "model.*{i}", r"\m\w+", "(?R)",
    ".*(?i)q_proj", r"(?<=self\w+)", "(?|a|b)", r"a\K", "(?r)x"])
def test_what_only_regex_could_say(pattern: str) -> None:
    with pytest.raises(NotKnownError) as raised:
        search(pattern, NAME)
    assert str(raised.value).startswith(f"pattern {pattern!r} in the quantization config; wanted")


@pytest.mark.parametrize("pattern", ["*.mlp", "(", "[a", "a**", ")", "a\\", "(?a)(?u)"])
def test_what_neither_reads(pattern: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        search(pattern, NAME)
    assert "wanted a regular expression" in str(raised.value)
