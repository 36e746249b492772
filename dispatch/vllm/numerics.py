"""Layers that compute otherwise than their checkpoint asks: weight-only, or with other scales."""

from __future__ import annotations

from collections.abc import Iterator

from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm.context import FP8_TENSOR_CORES_MIN, Context
from quantplan.dispatch.vllm.quant_config import quantization_config

Layers = tuple[Layer, ...]
NO_ACT = (None, "none")
DEEP_GEMM = "DeepGemm"
"""What the class names of DeepGEMM's kernels and experts hold, in any case."""


def weight_only(context: Context, layers: Layers) -> Iterator[Finding]:
    """Layers whose checkpoint asks for quantized activations and whose kernel computes without."""
    hit: dict[tuple[str | None, str | None], list[Layer]] = {}
    for layer in layers:
        if layer.asked not in NO_ACT and layer.kernel and "A16" in (layer.mode or ""):
            hit.setdefault((layer.kernel, layer.mode), []).append(layer)
    for (kernel, mode), alike in hit.items():
        if not _is_block_fp8_on_fp8_cores(context, alike[0]):
            yield Finding(
                "mode and numerics", "warning", "weight-only",
                f"{alike[0].path}{and_more(alike)}: the checkpoint asks for quantized activations, "
                f"{kernel} computes {mode}: it saves memory and bandwidth, not arithmetic",
                _way_out(alike[0]), None)


def activations_not_asked(context: Context, layers: Layers) -> Iterator[Finding]:
    """Layers whose checkpoint leaves activations alone and whose kernel quantizes them."""
    hit = [x for x in layers if x.asked == "none" and x.act not in NO_ACT]
    if hit:
        yield Finding(
            "mode and numerics", "warning", "activations-not-asked",
            f"{hit[0].path}{and_more(hit)}: the checkpoint quantizes weights only, {hit[0].scheme} "
            f"on {hit[0].kernel} computes {hit[0].mode}: activations are rounded as well",
            "--linear-backend marlin leaves them in 16 bits.",
            "model_executor/layers/quantization/compressed_tensors/compressed_tensors.py")


def and_more(alike: list[Layer]) -> str:
    """Return how many layers there are besides the first, in words."""
    return f" and {len(alike) - 1} more layers" if len(alike) > 1 else ""


def _way_out(layer: Layer) -> str | None:
    """Return why the last kernel in front of the chosen one was turned down, or the scheme's own
    reason."""
    rejected = layer.selection.rejected if layer.selection else ()
    decisive = next((c for c in reversed(rejected)
                     if c.decisive and c.decisive.fact != "gpu.platform"), None)
    if layer.why:
        return f"{layer.why[0].upper()}{layer.why[1:]}."
    return f"{decisive.kernel} is out: {decisive.decisive.text}." if decisive and (
        decisive.decisive) else None


def _is_block_fp8_on_fp8_cores(context: Context, layer: Layer) -> bool:
    family = layer.selection.family if layer.selection else None
    chosen = context.deployment.backend_of("fp8_block_w8a8") != "auto"
    return (family == "fp8_block_w8a8" and not chosen
            and context.gpu.capability >= FP8_TENSOR_CORES_MIN)


def block_fp8_weight_only(context: Context, layers: Layers) -> Iterator[Finding]:
    """Block FP8 on a GPU with FP8 tensor cores that still lands on Marlin."""
    hit = next((x for x in layers if x.selection and x.selection.family == "fp8_block_w8a8"
                and x.mode == "W8A16_fp8"), None)
    chosen = context.deployment.backend_of("fp8_block_w8a8") != "auto"
    if hit and not chosen and context.gpu.capability >= FP8_TENSOR_CORES_MIN:
        yield Finding(
            "mode and numerics", "warning", "block-fp8-weight-only",
            f"block FP8 runs weight-only ({hit.kernel}) although {context.gpu.capability_text} "
            "has FP8 tensor cores: no W8A8 block kernel ahead of it in the list accepts it",
            "--linear-backend triton selects TritonFp8BlockScaledMMKernel (W8A8).",
            "model_executor/kernels/linear/__init__.py:_POSSIBLE_FP8_BLOCK_KERNELS")


def rounded_scales(context: Context, layers: Layers) -> Iterator[Finding]:
    """DeepGEMM on block scales that are no powers of two: it rounds them up to such."""
    config = quantization_config(context.checkpoint)[0] or {}
    hit = next((x for x in layers if DEEP_GEMM.lower() in (x.kernel or "").lower()), None)
    if hit and config.get("scale_fmt") != "ue8m0" and context.facts["env.VLLM_USE_DEEP_GEMM_E8M0"]:
        yield Finding(
            "mode and numerics", "warning", "scales-rounded-to-powers-of-two",
            f"{hit.kernel} takes scales that are powers of two (UE8M0): the checkpoint's block "
            "scales are rounded when they are loaded, and the activations' as they are computed",
            "VLLM_USE_DEEP_GEMM_E8M0=0 keeps float32 scales where the GPU allows it; "
            "VLLM_USE_DEEP_GEMM=0 takes another kernel.",
            "utils/deep_gemm.py:is_deep_gemm_e8m0_used")


def finer_blocks(context: Context, layers: Layers) -> Iterator[Finding]:
    """Experts whose blocks do not divide one rank's share: the engine makes them smaller."""
    hit = next((x for x in layers if x.moe_backend and (x.why or "").startswith("blocks of")), None)
    if hit:
        yield Finding(
            "shapes under TP", "warning", "expert-blocks-made-smaller",
            f"{hit.path}: {hit.why}; {hit.kernel} runs them, as other backends take whole "
            "blocks only",
            "A smaller tensor parallel size, or --enable-expert-parallel, keeps the blocks whole.",
            "model_executor/layers/fused_moe/oracle/fp8.py:refine_fp8_moe_block_shape")


RULES = (weight_only, activations_not_asked, block_fp8_weight_only, rounded_scales, finer_blocks)
