"""The budget as text: verdict first, figures with their kind, what is still missing said."""

from __future__ import annotations

import pytest
from known_models import model
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.planner.budget import make_budget
from quantplan.reports.budget_text import budget_text
from quantplan.reports.columns import columns

LLAMA_24_GIB = """\
llama-3.1-8b (bf16, tp 1) fits 24.00 GiB x 0.92: 7.12 GiB are left for KV cache, \
at most 58,347 tokens.

Weights of one rank, from the config's sizes
                     GB    GiB  kind   counted as
  linear weights  13.96  13.00  exact  6,979,321,856 x 16 bits
  embeddings       1.05   0.98  exact  525,336,576 x 16 bits
  lm_head          1.05   0.98  exact  525,336,576 x 16 bits
  norms            0.00   0.00  exact  266,240 x 16 bits
  total           16.06  14.96  exact
  parameters: 6,979,321,856 linear + 1,050,939,392 other = 8,030,261,248

Memory of one GPU
                         GB    GiB  kind
  GPU memory          25.77  24.00  spec  as given
  engine memory       23.71  22.08  spec  25,769,803,776 bytes x 0.92, rounded up
  left after weights   7.65   7.12  spec

KV cache: 128 KiB per token (exact)
  2 (K and V) x 32 layers x 8 KV heads x 128 head_dim x 2 bytes (bfloat16)
  at most 58,347 tokens, 58,336 in whole blocks of 16 (spec)

The same model in other formats (weights exact, left and tokens spec; KV cache 128 KiB per token)
  --as       format             weights GB    GiB  left GiB  KV tokens at most
  bf16       bf16                    16.06  14.96      7.12             58,347
  fp8        fp8 per-tensor           9.08   8.46     13.62            111,595
  fp8-block  fp8 block 128x128        9.08   8.46     13.62            111,582
  w4a16      int4 g128 sym            5.70   5.31     16.77            137,387
  awq        int4 g128 asym           5.73   5.33     16.75            137,179

Not yet subtracted: activations, CUDA graphs, non-torch memory, allocator rounding, rotary tables, \
kernel repacking.
The engine therefore starts with fewer tokens than these.
"""


def text(name: str, gib: int, form: str | None = None, **changes: object) -> str:
    """Return the budget of a model as text."""
    checkpoint = model(name, **changes)
    checkpoint = as_format(checkpoint, form) if form else checkpoint
    return budget_text(make_budget(checkpoint, model_structure(checkpoint),
                                   memory_bytes=gib * 2**30))


def test_llama_8b_on_24_gib() -> None:
    assert text("llama-3.1-8b", 24) == LLAMA_24_GIB


def test_what_does_not_fit_comes_first() -> None:
    first, *rest = text("llama-3.1-8b", 16).splitlines()
    # 14.96 + 0.00 - 14.72 GiB
    assert first == ("llama-3.1-8b (bf16, tp 1) does not fit 16.00 GiB x 0.92: 0.24 GiB are "
                     "missing for the weights and one block of KV cache.")
    assert any(line.split()[:1] == ["bf16"] and line.endswith("does not fit") for line in rest)


def test_conventions_are_said_beside_their_figure() -> None:
    found = text("llama-3.1-8b", 24, "gptq")
    assert "54,525,952 x 4 bits; stored and allocated although symmetric; a kernel" in found


def test_notes_are_shown() -> None:
    assert "note: sliding_window is 4096: the window is not modelled" in text(
        "llama-3.1-8b", 24, sliding_window=4096)


def test_text_has_no_trailing_spaces_and_no_escapes() -> None:
    for form in ("fp8", "w4a16"):
        found = text("qwen2.5-7b", 24, form)
        assert "\x1b" not in found
        assert [line for line in found.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("arguments, wanted", [
    (([],), ""),
    (([[1, "a"], [22, "bb"]],), "  1   a\n  22  bb"),
    (([[1, "a"], [22, "bb"]], ["n", "name"], "rl", 0), " n  name\n 1  a\n22  bb"),
    (([["a", None, "c"], ["b"]], (), "", 1), " a    c\n b"),
])
def test_columns(arguments: tuple[object, ...], wanted: str) -> None:
    assert columns(*arguments) == wanted  # type: ignore[arg-type]
