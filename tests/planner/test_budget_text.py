"""The budget as text: verdict first, figures with their kind, what is still missing said."""

from __future__ import annotations

import pytest
from known_models import model
from quantplan.dispatch.facts import Note
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.planner.budget import make_budget
from quantplan.reports.budget_text import budget_text
from quantplan.reports.columns import columns

LLAMA_24_GIB = """\
llama-3.1-8b (bf16, tp 1) fits 24.00 GiB x 0.92 with vLLM 0.32.0: 5.66 GiB of KV cache, 46,320 \
tokens, 0.35 requests of 131,072 tokens; the largest --max-model-len is 46,304.

  [#############################################aggn=================xxxxxx]
  # weights 14.99 GiB (62 %)   a activations 0.38 GiB (2 %)   g CUDA graphs 0.81 GiB (3 %)
  n non-torch 0.25 GiB (1 %)   = KV cache 5.66 GiB (24 %)   x outside 1.92 GiB (8 %)

Memory of one GPU: 2,048 batched tokens, 256 sequences, 51 graph sizes
                                GB     GiB    +-  kind
  GPU memory                 25.77   24.00        spec
  engine's share, x 0.92     23.71   22.08        spec
  weights                   -16.09  -14.99        exact, modelled
  profile run: layers        -0.27   -0.25  0.02  measured
  token counts of requests   -0.14   -0.13        exact
  non-torch memory           -0.27   -0.25  0.30  measured
  CUDA graphs, estimated     -0.86   -0.81  0.21  measured
  left for KV cache           6.07    5.66  0.53

Weights of one rank, from the config's sizes
                        GiB  counted as
  linear weights      13.00  6,979,321,856 x 16 bits
  embeddings           0.98  525,336,576 x 16 bits
  lm_head              0.98  525,336,576 x 16 bits
  norms                0.00  266,240 x 16 bits
  rotary tables        0.03  131,072 positions x 128 x 2 bytes
  attention scales     0.00  32 layers x 4 scales x 4 bytes
  allocator rounding   0.00  blocks in use minus what was asked for, every allocation in load order
  parameters: 6,979,321,856 linear + 1,050,939,392 other = 8,030,261,248

Overheads
  profile run: layers       2,048 tokens x (43,008 features of the widest layer + 3.75 x 4,096 \
hidden) x 2 bytes + 33,554,432 bytes of cuBLAS; sampler would take 0.11 GiB
  token counts of requests  256 sequences x (128,256 counts + 4,008 words of bits) x 4 bytes
  non-torch memory          0.25 GiB of a rank under tp 1, pp 1
  CUDA graphs, estimated    (0.228 GiB + 32 layers x 0.01804 GiB) x 51 sizes of 51

KV cache: 128 KiB per token, blocks of 16 tokens
  KV cache of attention  32 layers x 8 KV heads x 512 bytes (key 128, value 128, the model's dtype)

The same model in other formats (KV cache 128 KiB per token)
  --as       format             weights GB    GiB  KV GiB  KV tokens
  bf16       bf16                    16.09  14.99    5.66     46,320
  fp8        fp8 per-tensor           9.11   8.49   12.16     99,568
  fp8-block  fp8 block 128x128        9.12   8.49   12.15     99,552
  w4a16      int4 g128 sym            5.74   5.35   15.30    125,296
  awq        int4 g128 asym           5.77   5.37   15.27    125,088
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
    # 14.99 + 0.25 + 0.13 + 0.25 + 0.81 - 14.72 GiB
    assert first == ("llama-3.1-8b (bf16, tp 1) does not fit 16.00 GiB x 0.92 with vLLM 0.32.0: "
                     "1.71 GiB are missing for weights, overheads and one block of KV cache.")
    assert any(line.split()[:1] == ["bf16"] and line.endswith("does not fit") for line in rest)


def test_conventions_are_said_beside_their_figure() -> None:
    found = text("llama-3.1-8b", 24, "gptq")
    assert "54,525,952 x 4 bits; stored and allocated although symmetric; a kernel" in found


def test_notes_are_shown() -> None:
    found = make_budget(model("llama-3.1-8b"), model_structure(model("llama-3.1-8b")),
                        memory_bytes=24 * 2**30)
    noted = found._replace(notes=(Note("id", "what is said", "What to do."),))
    assert "note: what is said" in budget_text(noted)


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
