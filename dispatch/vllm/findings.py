"""What passes selection and fails later, and what runs but not as hoped. Each rule reads the trace
and yields findings; none changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quantplan.dispatch.shard import shard
from quantplan.dispatch.trace import Finding, Layer
from quantplan.dispatch.vllm import attention_findings, environment_findings, numerics, tuned
from quantplan.dispatch.vllm.context import Context
from quantplan.dispatch.vllm.dtype import own_dtype
from quantplan.dispatch.vllm.experts import findings as experts
from quantplan.dispatch.vllm.forward import failing_forwards, tied_lm_head
from quantplan.dispatch.vllm.humming_findings import humming_without_activations
from quantplan.dispatch.vllm.quant_config import quantization_config
from quantplan.dispatch.vllm.unread import (
    assumed_routers,
    unread_exclusions,
    unread_quantization,
)

Layers = tuple[Layer, ...]
Rule = Callable[[Context, Layers], Iterator[Finding]]


def findings(context: Context, layers: Layers) -> tuple[Finding, ...]:
    """Return the findings of every rule, in the rules' order."""
    return tuple(finding for rule in RULES for finding in rule(context, layers))


def text_config_unread(context: Context, layers: Layers) -> Iterator[Finding]:
    """A text_config beside a text-only architecture: its config class does not unfold it."""
    if context.checkpoint.config.get("text_config") is not None and not context.structure.wrapper:
        yield Finding("config fields", "error", "text-config-of-a-text-model",
                      "The text_config extracted from the model config does not have "
                      "`num_attention_heads` attribute. This indicates a mismatch between the "
                      "model config and vLLM's expectations. Please ensure that the model config "
                      "is compatible with vLLM.",
                      f"{context.structure.architecture} takes its fields at the top level.",
                      "transformers_utils/config.py:get_hf_text_config")


def no_machine_code(context: Context, layers: Layers) -> Iterator[Finding]:
    """No machine code in the wheel for this capability: selection answers, kernels may not."""
    if context.gpu.capability not in context.table["machine_code"]:
        yield Finding(
            "first forward", "error" if context.gpu.capability < 75 else "warning",
            "no-machine-code",
            f"the {context.table['version']} wheel ships no machine code for "
            f"{context.gpu.capability_text}; its own kernels cannot be expected to run there",
            "Build the engine from source for this capability.",
            context.table["machine_code_source"])


def int8_on_blackwell(context: Context, layers: Layers) -> Iterator[Finding]:
    """INT8 W8A8 on 10.0 and up: CUTLASS is chosen and has no int8 path there."""
    chosen = any(x.kernel == "CutlassInt8ScaledMMLinearKernel" for x in layers)
    if chosen and context.gpu.capability >= 100:
        yield Finding(
            "first forward", "error", "int8-cutlass-from-10.0",
            "CutlassInt8ScaledMMLinearKernel is selected, but its kernel has no INT8 path on "
            f"{context.gpu.capability_text}: the profile run fails (\"Int8 not supported on SM\")",
            "Pass --linear-backend triton, or set VLLM_DISABLED_KERNELS="
            "CutlassInt8ScaledMMLinearKernel.",
            "text in the wheel's _C; vllm-project/vllm#54311")


def split_groups(context: Context, layers: Layers) -> Iterator[Finding]:
    """GPTQ checks no group against the shard: some kernels accept a group cut by TP."""
    for layer in _one_per_shape(layers):
        checks = layer.selection.candidates if layer.selection else ()
        marlin = next((c for c in checks if c.kernel == "MarlinLinearKernel"), None)
        cut = marlin and any(c.verdict == "fail" and c.id.endswith(".quant.group_size")
                             and "must divide layer.k" in c.text for c in marlin.checks)
        if cut and layer.kernel != "MarlinLinearKernel" and context.deployment.tp > 1:
            yield Finding(
                "shapes under TP", "warning", "group-cut-by-tp",
                f"{layer.path}: a quantization group straddles two ranks; Marlin refuses it, "
                f"{layer.kernel} accepts it and the scales are cut: results are suspect",
                "Use a tensor parallel size that leaves whole groups.",
                "model_executor/layers/quantization/auto_gptq.py:"
                "AutoGPTQLinearMethod.create_weights")


def merged_block(context: Context, layers: Layers) -> Iterator[Finding]:
    """fp8 checkpoints skip the block check on fused layers whose parts it does not divide."""
    config = quantization_config(context.checkpoint)[0] or {}
    for layer in _one_per_shape(layers):
        if layer.method != "Fp8LinearMethod" or not config.get("weight_block_size"):
            continue
        rows, parts = config["weight_block_size"][0], _parts(context, layer)
        cut = [part for part in parts if part % rows]
        if cut and len(parts) > 1:
            yield Finding(
                "shapes under TP", "warning", "block-cut-in-fused-layer",
                f"{layer.path}: {cut[0]} outputs of one part are not whole {rows}-blocks; the "
                "engine skips its own check for fused layers of fp8 checkpoints", None,
                "model_executor/layers/linear.py:ColumnParallelLinear."
                "_maybe_allow_fp8_block_shape_mismatch")


def _parts(context: Context, layer: Layer) -> tuple[int, ...]:
    module = context.structure.module_of(layer.path, layer.layer_index)
    return shard(module, context.deployment.tp).parts


def layer_notes(context: Context, layers: Layers) -> Iterator[Finding]:
    """What a scheme knows will come of a layer; the first layer of each kind is named."""
    told: set[str] = set()
    for layer in layers:
        if layer.note is not None and layer.note.id not in told:
            told.add(layer.note.id)
            yield layer.note


def humming_float32(context: Context, layers: Layers) -> Iterator[Finding]:
    """Humming accepts float32 activations, but prepares weights for 16 bits only."""
    hit = next((x for x in layers if (x.kernel or "").startswith("Humming")), None)
    if hit and context.dtype == "float32":
        yield Finding("weight loading", "error", "humming-float32",
                      f"{hit.kernel} is selected, but it prepares weights for float16 or bfloat16 "
                      "only", "Pass --dtype bfloat16 or float16.",
                      "model_executor/kernels/linear/mixed_precision/humming.py; "
                      "humming/schema.py")


def float16_fallback(context: Context, layers: Layers) -> Iterator[Finding]:
    """A bfloat16 checkpoint on a GPU without bfloat16: the engine falls back by itself."""
    auto = context.deployment.dtype == "auto"
    if auto and context.gpu.capability < 80 and own_dtype(context.checkpoint) == "bfloat16":
        yield Finding("activation dtype", "warning", "float16-fallback",
                      "the checkpoint is bfloat16, which needs 8.0; on "
                      f"{context.gpu.capability_text} the engine falls back to float16, whose "
                      "range ends at 65504",
                      "Watch for NaN or garbage; use a GPU of 8.0 or newer for bfloat16.",
                      "config/model.py:_get_and_verify_dtype")


def _one_per_shape(layers: Layers) -> list[Layer]:
    seen: dict[tuple[object, ...], Layer] = {}
    for layer in layers:
        name = layer.path.rsplit(".", 1)[-1]
        seen.setdefault((name, layer.n, layer.k, layer.kernel), layer)
    return list(seen.values())


RULES: tuple[Rule, ...] = (
    unread_quantization, text_config_unread, float16_fallback, humming_float32,
    humming_without_activations,
    no_machine_code, int8_on_blackwell, split_groups, merged_block,
    failing_forwards, tied_lm_head, unread_exclusions, assumed_routers, layer_notes,
    *numerics.RULES, *experts.RULES, *tuned.RULES, *environment_findings.RULES,
    *attention_findings.RULES,
)
