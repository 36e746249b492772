"""Layouts of caches that vLLM's own group formation was asked about: layer name -> spec, in blocks
as the platform had cut them."""

from __future__ import annotations

from collections.abc import Mapping

from quantplan.planner.kv_spec import CHUNK, FULL, STATE, WINDOW, Spec


def full(heads: int, dim: int, block: int = 16, item: int = 2, value_dim: int = 0) -> Spec:
    return Spec(FULL, block, heads * (dim + (value_dim or dim)) * item, (heads, dim, item))


def window(heads: int, dim: int, span: int, block: int = 16, value_dim: int = 0) -> Spec:
    return Spec(WINDOW, block, heads * (dim + (value_dim or dim)) * 2, (heads, dim, 2), span)


def chunk(heads: int, dim: int, span: int) -> Spec:
    return Spec(CHUNK, 16, heads * 2 * dim * 2, (heads, dim, 2), span)


def latent(row_bytes: int, block: int = 64) -> Spec:
    return Spec(FULL, block, row_bytes, ("latent", row_bytes), latent=True)


def state(own_bytes: int, page_bytes: int, checkpoints: int = 0) -> Spec:
    return Spec(STATE, 1, own_bytes, ("state",), padded_bytes=page_bytes, checkpoints=checkpoints)


def layers(*specs: Spec) -> dict[str, Spec]:
    return {f"model.layers.{i}.attn": spec for i, spec in enumerate(specs)}


def _sparse() -> dict[str, Spec]:
    return {f"model.layers.{i}.{name}": spec for i in range(61)
            for name, spec in (("k", latent(132)), ("attn", latent(1152)))}


def _compressed() -> dict[str, Spec]:
    """DeepSeek-V4-Flash: rows of 4 and of 128 tokens by turns, windows of 128 tokens everywhere."""
    rows = Spec(FULL, 256, 584, ("rows",), latent=True, alignment_bytes=576)
    kept = Spec(WINDOW, 64, 584, ("kept",), 128, latent=True, alignment_bytes=576)
    found = {}
    for i in range(43):
        tokens = 1 if i < 2 else 128 if i % 2 else 4
        if tokens == 4:
            found[f"model.layers.{i}.k"] = rows._replace(row_bytes=132, tokens_per_row=4)
            found[f"model.layers.{i}.ks"] = kept._replace(
                block_tokens=4, row_bytes=2048, span_tokens=8)
        if tokens > 1:
            found[f"model.layers.{i}.attn"] = rows._replace(tokens_per_row=tokens)
        found[f"model.layers.{i}.swa"] = kept
        if tokens > 1:
            block, row, span = (4, 8192, 8) if tokens == 4 else (8, 4096, 128)
            found[f"model.layers.{i}.s"] = kept._replace(
                block_tokens=block, row_bytes=row, span_tokens=span)
    return found


MIMO_FULL = (0, 5, 11, 17, 23, 29, 35, 41, 47)
GPT_OSS = [full(8, 64) if i % 2 else window(8, 64, 128) for i in range(24)]
LAYOUTS: Mapping[str, Mapping[str, Spec]] = {
    "llama-8b": layers(*[full(8, 128)] * 32),
    "gemma3-27b": layers(*(full(16, 128) if i % 6 == 5 else window(16, 128, 1024)
                           for i in range(62))),
    "gemma2-9b": layers(*(full(8, 256) if i % 2 else window(8, 256, 4096) for i in range(42))),
    "gpt-oss-20b": layers(*GPT_OSS),
    "gpt-oss-20b+1": layers(*GPT_OSS, full(8, 64)),
    "llama4": layers(*(full(8, 128) if i % 4 == 3 else chunk(8, 128, 8192) for i in range(48))),
    "gemma4": layers(*(full(2, 512) if i % 6 == 5 else window(8, 256, 1024) for i in range(30))),
    "mimo": layers(*(full(4, 192, value_dim=128) if i in MIMO_FULL
                     else window(8, 192, 128, value_dim=128) for i in range(48))),
    "dsv32": _sparse(),
    "qwen35": layers(*(full(2, 256, 1056) if i % 4 == 3 else state(2146304, 1056 * 2048)
                       for i in range(40))),
    "nemotron-nano": layers(*(full(2, 128, 2096) if i in {5, 12, 19, 26, 33, 42}
                              else state(2134016, 2096 * 1024, 1) for i in range(29))),
    "kimi-linear": layers(*(latent(1152, 1920) if i % 4 == 3 else state(2170880, 1920 * 1152)
                            for i in range(27))),
    "uneven": layers(*[full(8, 128)] * 10, *[window(8, 96, 512)] * 14),
    "mla+window": layers(*[latent(1152)] * 6, *[window(2, 64, 512, 64)] * 2),
    "dsv4-flash": _compressed(),
    "mixed": layers(*[full(8, 128, 64)] * 4, *[full(8, 128, 64, 1)] * 28),
}
