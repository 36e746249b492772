"""What the choice of attention and KV cache does later, or does unasked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from quantplan.dispatch.predicates import fill
from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.attention_backends import first_failing
from quantplan.dispatch.vllm.attention_facts import is_quantized
from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.kv_cache import CT_METHOD, is_packed, scales_kind

Layers = tuple[Layer, ...]
SCALE = re.compile(r"\.(\d+)\..*?(?:\.([kv])_proj\.output_scale|\.([kv])_scale|\.(kv)_scale|"
                   r"\.([kv])_cache\.scale)$")
SCALE_ENDINGS = ("_scale", "_cache.scale")
SCALES_SOURCE = "model_executor/layers/quantization/kv_cache.py:BaseKVCacheMethod"


def not_compiled(context: Context, layers: Layers) -> Iterator[Finding]:
    """A chosen backend that has no machine code for this device: nothing in selection asks."""
    told = set()
    for layer in layers:
        for step in layer.selection.steps if layer.selection else ():
            if step.kind == "NoCode" and step.what not in told:
                told.add(step.what)
                yield Finding(
                    "first forward", "error", "attention-not-compiled",
                    f"{layer.path}: {step.what} is selected, but {step.because}: it cannot run on "
                    f"{context.gpu.capability_text}", None, step.source)


def state_not_invariant(context: Context, layers: Layers) -> Iterator[Finding]:
    """Recurrent layers under VLLM_BATCH_INVARIANT: refused when their caches are laid out."""
    table = context.table["attention"]
    for layer in layers if context.facts["env.VLLM_BATCH_INVARIANT"] else ():
        row = table["modules"].get(layer.module, {})
        if row.get("state"):
            yield Finding("weight loading", "error", "state-not-batch-invariant",
                          fill(table["no_state_invariance"], {"backend": row["backend"]}),
                          "Unset VLLM_BATCH_INVARIANT.", table["no_state_invariance_source"])
            return


def refused_later(context: Context, layers: Layers) -> Iterator[Finding]:
    """A module whose cache refuses when it is laid out."""
    modules = context.table["attention"]["modules"]
    for layer in layers:
        row = modules.get(layer.module, {})
        found = first_failing(row, "later", context.facts) if "later" in row else None
        if found:
            yield Finding("weight loading", "error", "cache-refused",
                          f"{layer.path}: {found[1].says}", None, found[1].source)
            return


def missing_scales(context: Context, layers: Layers) -> Iterator[Finding]:
    """A quantized KV cache whose scales are not in the headers, or are there and not loaded."""
    tensors = context.checkpoint.tensors
    scaled = [layer for layer in layers if _scaled(context, layer)]
    if not scaled:
        return
    kind = "NVFP4" if str(scaled[0].kv_cache_dtype).startswith("nvfp4") else "FP8"
    if tensors is None:
        yield _scales_unseen(kind, scaled, context.dtype)
        return
    stored = _stored_scales(tensors)
    lacking = [x for x in scaled if not stored.get(x.layer_index)]
    unread = [x for x in scaled if x.method is None and stored.get(x.layer_index)]
    if lacking:
        whose = "the checkpoint stores no k/v scales" if len(lacking) == len(scaled) else (
            f"{len(lacking)} of {len(scaled)} attention layers have no k/v scales stored")
        yield Finding("scales in the checkpoint", "warning", "kv-scales-missing",
                      f"the KV cache is {kind} but {whose}: 1.0 is used silently",
                      f"Calibrate KV scales, or use --kv-cache-dtype {context.dtype}.",
                      SCALES_SOURCE)
    if unread:
        yield Finding("scales in the checkpoint", "warning", "kv-scales-not-loaded",
                      f"{unread[0].path}: the checkpoint stores k/v scales, but its method does "
                      "not load them here: 1.0 is used", None, SCALES_SOURCE)
    yield from _values_only(scaled, stored)


def _scales_unseen(kind: str, scaled: list[Layer], dtype: str) -> Finding:
    """Return what is known of the scales without headers: layers whose method loads none have 1.0,
    whatever is stored."""
    if all(x.method is None for x in scaled):
        return Finding("scales in the checkpoint", "warning", "kv-scales-missing",
                       f"the KV cache is {kind} and the checkpoint's method loads no k/v scales: "
                       "1.0 is used silently", f"Use --kv-cache-dtype {dtype}, or a checkpoint "
                       "whose method loads calibrated scales.", SCALES_SOURCE)
    return Finding("scales in the checkpoint", "info", "kv-scales-not-seen",
                   f"the KV cache is {kind}, and no safetensors header was read: layers without "
                   "k/v scales in the checkpoint use 1.0 silently",
                   "Give the folder or the hub id instead of a config.", SCALES_SOURCE)


def _values_only(scaled: list[Layer], stored: Mapping[int | None, set[str]]) -> Iterator[Finding]:
    """A v scale without its k scale: the engine asserts the other way round only."""
    hit = next((x for x in scaled if x.method not in (None, CT_METHOD)
                and stored.get(x.layer_index) == {"v"}), None)
    if hit:
        yield Finding("weight loading", "error", "kv-scale-without-key",
                      f"{hit.path}: a v scale is stored without a k scale: the engine asserts that "
                      "the k scale is positive", "Store both scales.", SCALES_SOURCE)


def _scaled(context: Context, layer: Layer) -> bool:
    """Return whether the layer's cache has scales that a checkpoint could store."""
    dtype = layer.kv_cache_dtype
    if dtype is None or scales_kind(context.table, layer.module) is None:
        return False
    rows = {row["id"]: row for row in context.table["kv_cache"]["dtypes"]}
    return is_quantized(context.table, dtype) and "scales" not in rows[dtype]


def _stored_scales(tensors: Mapping[str, object]) -> dict[int | None, set[str]]:
    """Return layer index -> which scales are stored: k, v, or kv for both."""
    found: dict[int | None, set[str]] = {}
    for name in tensors:
        match = SCALE.search(name) if name.endswith(SCALE_ENDINGS) else None
        if match:
            which = next(group for group in match.groups()[1:] if group)
            found.setdefault(int(match[1]), set()).add(which)
    return found


def scheme_not_read(context: Context, layers: Layers) -> Iterator[Finding]:
    """A compressed-tensors KV scheme on latent attention, which does not read it."""
    hit = next((x for x in layers if scales_kind(context.table, x.module) == "mla"), None)
    if hit and context.facts["kv.scheme"] and context.deployment.kv_cache_dtype == "auto":
        yield Finding("mode and numerics", "warning", "kv-scheme-not-read",
                      f"{hit.path}: the checkpoint declares an FP8 KV cache, but latent attention "
                      "does not read that: the cache stays 16-bit",
                      "Pass --kv-cache-dtype fp8; the scales are 1.0 then.",
                      "model_executor/layers/attention/mla_attention.py:MLAAttention")


def changed_by_engine(context: Context, layers: Layers) -> Iterator[Finding]:
    """A KV cache dtype that the engine itself puts in place of the one asked for."""
    for row in context.table["kv_cache"]["changes"] if layers else ():
        asked = context.facts["kv.asked"]
        mine = context.structure.architecture in row["architectures"]
        if mine and (asked, context.facts["kv.configured"]) == (row["from"], row["to"]):
            yield Finding("flags", "info", "kv-dtype-changed",
                          f"--kv-cache-dtype {asked} becomes {row['to']}: {row['because']}", None,
                          row["source"])


def packed_boundary(context: Context, layers: Layers) -> Iterator[Finding]:
    """Packed caches leave the first and last layers alone."""
    table, dtype = context.table, context.facts.get("kv.configured", "auto")
    row = table["kv_cache"]["packed"]
    alone = [x for x in layers if scales_kind(table, x.module) and x.kv_cache_dtype == "auto"]
    if alone and is_packed(table, dtype):
        yield Finding("mode and numerics", "info", "kv-packed-boundary",
                      f"--kv-cache-dtype {dtype}: {len(alone)} layers at the ends keep the model's "
                      f"dtype, and FlashAttention is held to version {row['flash_version']}", None,
                      row["source"])


def block_precluded(context: Context, layers: Layers) -> Iterator[Finding]:
    """--block-size alone ruled out a backend that comes earlier."""
    aspects = context.table["attention"]["aspects"]
    words = next(aspect["says"] for aspect in aspects if aspect["id"] == "block_size")
    for layer in layers if context.deployment.block_size else ():
        lost = [c.kernel for c in layer.selection.rejected if c.reason == words] if (
            layer.selection and layer.attn_backend) else []
        if lost:
            yield Finding("kernel selection", "warning", "block-size-precludes",
                          f"--block-size {context.deployment.block_size} rules out "
                          f"{', '.join(lost)}: {layer.attn_backend} is used instead",
                          "Drop --block-size.", context.table["attention"]["source"])
            return


RULES: tuple[Callable[[Context, Layers], Iterator[Finding]], ...] = (
    not_compiled, state_not_invariant, refused_later, missing_scales, scheme_not_read,
    changed_by_engine, packed_boundary, block_precluded,
)
