"""Names near one that is not known, as refusals ask back."""

from __future__ import annotations

import pytest
from quantplan.tables.near_names import did_you_mean, near_names

KNOWN = ("flashinfer", "flash_attn", "deep_gemm", "DeepEP")


@pytest.mark.parametrize("text, near", [
    ("deepgemm", ["deep_gemm", "DeepEP"]), ("DEEPEP", ["DeepEP", "deep_gemm"]),
    ("quark", [])])
def test_near_names_in_any_case(text: str, near: list[str]) -> None:
    assert near_names(text, KNOWN) == near


def test_at_most_so_many_are_near() -> None:
    assert near_names("deepgemm", KNOWN, count=1) == ["deep_gemm"]


@pytest.mark.parametrize("names, question", [
    (["a"], "Did you mean a?"), (["a", "b"], "Did you mean a, b?"), ([], "")])
def test_the_question(names: list[str], question: str) -> None:
    assert did_you_mean(names) == question
