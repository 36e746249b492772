"""A trace in a few words: which modes and whose kernels serve most weights."""

from __future__ import annotations

from collections.abc import Iterable

from quantplan.dispatch.trace import PARTIAL_TABLE, Layer, Trace
from quantplan.tables.mode_rows import implementations, modes
from quantplan.tables.record import NamedTuple

VOCABULARY = ("VocabParallelEmbedding", "ParallelLMHead")
"""Modules of a vocabulary: they are no linear layers of the model's body."""


class Part(NamedTuple):
    """Layers that share mode and implementation, and how many weights of one rank they hold."""

    mode: str
    implementation: str | None
    kernels: tuple[str, ...]
    weights: int
    layers: tuple[Layer, ...]

    @property
    def words(self) -> str:
        """Return the mode as people write it, and whose kernels serve it."""
        return part_words(self.mode, self.implementation)


def linear_parts(trace: Trace) -> tuple[Part, ...]:
    """Return the parts of the linear layers, without embeddings and heads; most weights first."""
    return _parts(trace, (layer for layer in trace.layers if is_linear(layer)))


def experts_parts(trace: Trace) -> tuple[Part, ...]:
    """Return the parts of the routed experts, most weights first."""
    return _parts(trace, (layer for layer in trace.layers if layer.moe_backend is not None))


def is_linear(layer: Layer) -> bool:
    """Return whether a layer is a linear one of the model's body."""
    return in_body(layer) and layer.moe_backend is None


def in_body(layer: Layer) -> bool:
    """Return whether a layer has weights and is neither an embedding nor a head."""
    return layer.weighted and layer.module not in VOCABULARY


def mode_of(layer: Layer, trace: Trace) -> str:
    """Return a layer's mode: unknown where an operator that is not known serves it, that of 16 or
    32 bits where nothing quantizes it."""
    if layer.mode or layer.selection or _is_quantized(layer):
        return layer.mode or "unknown"
    return "W32A32" if trace.dtype == "float32" else "W16A16"


def _is_quantized(layer: Layer) -> bool:
    """Return whether a method quantizes the layer's weights."""
    return layer.weighted and layer.method is not None and not layer.method.startswith(
        "Unquantized")


def implementation(kernel: str) -> str:
    """Return whose code a kernel is, by its name; the name itself where no row knows it."""
    lower = kernel.lower()
    return next((str(row["name"]) for row in implementations()
                 if any(part in lower for part in row["holds"])), kernel)


def served_by(layer: Layer) -> str | None:
    """Return whose kernel serves a layer, None for the plain product of an unquantized one."""
    if layer.kernel is None or layer.kernel in PLAIN_PRODUCTS:
        return None
    backend = f":{layer.kernel_backend}" if layer.kernel_backend else ""
    return implementation(layer.kernel + backend)


PLAIN_PRODUCTS = ("torch.mm",)
"""Kernels of layers that no method quantizes."""


def part_words(mode: str, served: str | None) -> str:
    """Return a mode as people write it, and whose kernels serve it."""
    short = str(modes()[mode]["short"]) if mode in modes() else mode
    return short if served is None else f"{short} {served}"


def kv_dtypes(trace: Trace) -> tuple[str, ...]:
    """Return the dtypes of the KV cache in the engine's own words: those of its layers, else what
    the engine resolves for all."""
    said = [x.kv_cache_dtype for x in trace.layers if x.kv_cache_dtype is not None]
    resolved = said or [str(trace.kv_cache.get("resolved", "auto"))]
    return tuple(dict.fromkeys(trace.dtype if dtype == "auto" else dtype for dtype in resolved))


def kv_words(trace: Trace) -> str:
    """Return the dtypes of the KV cache in words that both engines share."""
    return ", ".join(dict.fromkeys(
        "FP8" if dtype in FP8_CACHES else dtype for dtype in kv_dtypes(trace)))


FP8_CACHES = ("fp8", "fp8_e4m3", "float8_e4m3fn")
"""How the engines call a KV cache in FP8 with four bits of exponent."""


def starts(trace: Trace) -> str:
    """Return "no" when the engine refuses or a finding says it fails later, else "yes" or, where
    that depends on what is not known, "conditional"."""
    if trace.error or any(f.severity == "error" for f in trace.findings):
        return "no"
    unsure = any(f.id in CONDITIONS for f in trace.findings) or trace.outcome == "conditional"
    return "conditional" if unsure else "yes"


CONDITIONS = (PARTIAL_TABLE, "code-not-named")
"""Findings of what is not known about the start."""


def attention_backends(trace: Trace) -> tuple[str, ...]:
    """Return the attention backends of the layers, in the order in which layers name them."""
    return tuple(dict.fromkeys(layer.attn_backend for layer in trace.layers
                               if layer.attn_backend is not None))


def _parts(trace: Trace, layers: Iterable[Layer]) -> tuple[Part, ...]:
    found: dict[tuple[str, str | None], list[Layer]] = {}
    for layer in layers:
        mode = mode_of(layer, trace)
        found.setdefault((mode, served_by(layer)), []).append(layer)
    parts = [Part(mode, served, _kernels(group), sum(map(weights_of, group)), tuple(group))
             for (mode, served), group in found.items()]
    return tuple(sorted(parts, key=lambda part: -part.weights))


def _kernels(layers: Iterable[Layer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(layer.kernel for layer in layers if layer.kernel is not None))


def weights_of(layer: Layer) -> int:
    """Return how many weights one rank holds of a layer."""
    return layer.weights or (layer.n or 0) * (layer.k or 0)
