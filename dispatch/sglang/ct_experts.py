"""Routed experts of compressed-tensors checkpoints
(layers/quantization/compressed_tensors/compressed_tensors.py:CompressedTensorsConfig.get_moe_scheme)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantplan.dispatch.ct_args import Args
from quantplan.dispatch.sglang.context import BLACKWELL, Assignment, Context, Site
from quantplan.dispatch.sglang.ct_names import find_target, is_ignored
from quantplan.dispatch.sglang.ct_schemes import FOLDER, SOURCE, Group
from quantplan.dispatch.sglang.experts import Experts, unquantized_experts
from quantplan.dispatch.sglang.fp8 import check_experts_block
from quantplan.dispatch.trace import refuse

METHOD = "CompressedTensorsFusedMoEMethod"
SCHEMES = f"{FOLDER}/schemes"
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
PACKED = "pack-quantized"
BITS = (4, 8)
NVFP4_GROUP = 16
TRITON_GROUPS = (32, 128)
"""Groups of 4 bits that the Triton kernel of weight-only integers serves."""
NVFP4_SIZES = (("hidden_size", "hidden", 128), ("intermediate_size_per_partition",
                                                "intermediate", 64))
"""What Marlin asks of NVFP4 experts: the engine's word, the size, and what divides it."""


def assign_experts(  # noqa: PLR0917 - three fields of CtFields, whose module imports this one
    targets: Mapping[str, Group], ignore: tuple[str, ...], whole_format: Any, context: Context,
    site: Site, held: Experts,
) -> Assignment:
    """Return the assignment of routed experts, or refuse as their scheme does, which reads the
    format of the whole checkpoint and not their group's. Raises NotKnownError for schemes and
    backends that are not in the table."""
    group = _group(targets, ignore, context, site)
    if group is None:
        return unquantized_experts("named in ignore")
    group = group._replace(format=whole_format)
    if context.facts["moe.backend"] == "flashinfer_trtllm" and _is_mxint4(group):
        return _mxint4(group, context, site)
    weights, inputs = group.weights, group.inputs
    if weights.type == "int" and inputs is None and weights.strategy in ("channel", "group"):
        return _wna16(group, context, site)
    if _is_nvfp4(weights) and (inputs is None or _is_nvfp4(inputs)):
        return _nvfp4(group, context, site, held)
    if inputs is None:
        raise refuse("layer assignment", "AttributeError", "'NoneType' object has no attribute "
                     "'num_bits'", site.path, f"{SOURCE}.get_moe_scheme",
                     hint="SGLang serves no such experts with 16-bit activations.")
    if _is_fp8(weights, inputs):
        return _fp8(weights, inputs, site, held)
    return _integers(group, weights, inputs, site)


def _integers(group: Group, weights: Args, inputs: Args, site: Site) -> Assignment:
    """4-bit integers with FP8 activations, or refuse: others are served on NPUs, or not at all."""
    token = inputs.num_bits == 8 and inputs.strategy == "token" and bool(
        inputs.dynamic and weights.symmetric and not weights.dynamic)
    kind = None
    if token and weights.num_bits == 8 and weights.strategy in ("tensor", "channel"):
        kind = "W8A8Int8"
    elif _is_w4afp8(group, inputs):
        return Assignment(METHOD, "CompressedTensorsW4AFP8MoE", "experts_w4afp8",
                          {"moe.act": "static"})
    elif token and weights.num_bits == 4 and weights.strategy in ("group", "channel"):
        kind = "W4A8Int8"
    if kind is None:
        raise refuse("layer assignment", "RuntimeError", f"Unsupported FusedMoe scheme: {weights}, "
                     f"{inputs}", site.path, f"{SOURCE}.get_moe_scheme",
                     hint="SGLang serves no such experts.")
    raise refuse("layer assignment", "NotImplementedError", f"The {kind} Fused MoE scheme is "
                 "implemented only for NPU for now.", site.path, f"{SOURCE}.get_moe_scheme",
                 hint="Serve this checkpoint with vLLM, or an FP8 one.")


def _is_w4afp8(group: Group, inputs: Args) -> bool:
    weights = group.weights
    return (group.format == PACKED and weights.num_bits == 4 and weights.type == "int"
            and bool(weights.symmetric) and not weights.dynamic and inputs.num_bits == 8
            and bool(inputs.dynamic))


def _is_nvfp4(args: Args) -> bool:
    return (args.type == "float" and args.num_bits == 4 and args.strategy == "tensor_group"
            and args.group_size == NVFP4_GROUP and bool(args.symmetric))


def _is_fp8(weights: Args, inputs: Args) -> bool:
    """Return whether the weights have an FP8 scheme, whatever their width
    (CompressedTensorsConfig._is_fp8_w8a8)."""
    return (weights.type == inputs.type == "float" and bool(weights.symmetric)
            and not weights.dynamic and weights.strategy in ("tensor", "channel", "block")
            and bool(inputs.dynamic or (inputs.symmetric and inputs.strategy == "tensor")))


def _group(
    targets: Mapping[str, Group], ignore: tuple[str, ...], context: Context, site: Site
) -> Group | None:
    """Return the group of the first expert's projections; refuses where they differ. A target
    Linear means FusedMoE too."""
    linear = {"FusedMoE": targets["Linear"]} if "Linear" in targets else {}
    whole = {**linear, **targets}
    found: list[Group | None] = []
    for name in PROJECTIONS:
        path = f"{site.path}.0.{name}"
        ignored = is_ignored(context, path, ignore) or not whole
        target = None if ignored else find_target(context, path, "FusedMoE", whole)
        found.append(None if target is None else whole[target])
    if any(group != found[0] for group in found):
        raise refuse("layer assignment", "ValueError", "All MoE projections need to have same "
                     "quantization scheme but found multiple", site.path,
                     f"{SOURCE}.get_moe_scheme", hint="Quantize all three projections alike.")
    return found[0]


def _mxint4(group: Group, context: Context, site: Site) -> Assignment:
    if group.format != PACKED:
        raise refuse("layer assignment", "ValueError", f"For Fused MoE layers, only {PACKED} is "
                     "supported for the mxint4", site.path,
                     f"{SCHEMES}/compressed_tensors_w4a4_mxint4_moe.py:CompressedTensorsMxInt4MoE",
                     hint="Drop --moe-backend.")
    if context.dtype != "bfloat16":
        raise refuse("layer assignment", "AssertionError", "Params dtype should be torch.bfloat16, "
                     f"but got: torch.{context.dtype}", site.path,
                     f"{SCHEMES}/compressed_tensors_w4a4_mxint4_moe.py:CompressedTensorsMxInt4MoE",
                     hint="Pass --dtype bfloat16.")
    return Assignment(METHOD, "CompressedTensorsMxInt4MoE", "experts_ct_mxint4")


def _is_mxint4(group: Group) -> bool:
    """Return whether FlashInfer's kernel for 4-bit integers in groups of 32 serves the experts
    (CompressedTensorsConfig._is_mxint4a16)."""
    weights = group.weights
    return (group.inputs is None and weights.num_bits == 4
            and weights.type == "int" and weights.strategy == "group" and weights.group_size == 32
            and weights.symmetric and not weights.dynamic and not weights.actorder)


def _wna16(group: Group, context: Context, site: Site) -> Assignment:
    """Weight-only integers: Marlin, or Triton where it is asked for, and on 10.x by itself."""
    weights, backend = group.weights, context.facts["moe.backend"]
    triton = (weights.num_bits == 4 and weights.strategy == "group" and weights.symmetric
              and weights.group_size in TRITON_GROUPS and not weights.actorder)
    if backend == "triton" and not triton:
        raise refuse("layer assignment", "ValueError", "The Triton WNA16 MoE backend only supports "
                     "symmetric INT4 group quantization with group_size=32 or 128 and no actorder.",
                     site.path, f"{SOURCE}.get_moe_scheme", hint="Drop --moe-backend.")
    if group.format != PACKED or weights.num_bits not in BITS:
        words = ("For Fused MoE layers, only ", f"{PACKED} ",
                 "is supported for the following bits: ", str([*BITS]))
        raise refuse("layer assignment", "ValueError", str(words), site.path,
                     f"{SCHEMES}/compressed_tensors_wNa16_moe.py:CompressedTensorsWNA16MoE",
                     hint="Serve experts of 4 or 8 bits.")
    if backend == "triton" or (backend == "auto" and triton and context.facts["gpu.family"] == 100):
        return Assignment(METHOD, "CompressedTensorsWNA16TritonMoE", "experts_ct_triton_w4")
    return Assignment(METHOD, "CompressedTensorsWNA16MoE", f"experts_ct_marlin_w{weights.num_bits}")


def _nvfp4(group: Group, context: Context, site: Site, held: Experts) -> Assignment:
    """NVFP4: weight-only on Marlin below 10.0, and with 16-bit activations."""
    if group.inputs is not None and context.gpu.capability >= BLACKWELL:
        return Assignment(METHOD, "CompressedTensorsW4A4Nvfp4MoE", "experts_ct_nvfp4_w4a4")
    refusal = next((refuse(
        "weight loading", "ValueError", f"NVFP4 Marlin MoE requires {word} % {multiple} == 0, got "
        f"{getattr(held, size)}.", site.path, f"{SCHEMES}/compressed_tensors_w4a16_nvfp4_moe.py",
        hint="Choose a smaller tensor parallel size.")
        for word, size, multiple in NVFP4_SIZES if getattr(held, size) % multiple), None)
    return Assignment(METHOD, "CompressedTensorsW4A16Nvfp4MoE", "experts_ct_nvfp4",
                      refusal=refusal)


def _fp8(weights: Args, inputs: Args, site: Site, held: Experts) -> Assignment:
    kinds = (weights.strategy, inputs.strategy)
    if kinds == ("channel", "token") and not inputs.dynamic:
        raise refuse("layer assignment", "ValueError", "For FP8 Fused MoE layer, we require either "
                     "per tensor or channelwise, dynamic per token quantization.", site.path,
                     f"{SCHEMES}/compressed_tensors_w8a8_fp8_moe.py:CompressedTensorsW8A8Fp8MoE",
                     hint="Quantize activations per token while serving.")
    block = weights.block_structure if weights.strategy == "block" else None
    if block is not None:
        check_experts_block((block[0], block[1]), held, site)
    elif kinds not in (("channel", "token"), ("tensor", "tensor")):
        raise refuse("layer assignment", "AssertionError", "", site.path,
                     f"{SCHEMES}/compressed_tensors_w8a8_fp8_moe.py:CompressedTensorsW8A8Fp8MoE",
                     hint="Quantize per tensor, per channel and token, or in blocks.")
    act = "group" if block else "per_token" if kinds[1] == "token" else "static" if (
        not inputs.dynamic) else "per_tensor"
    return Assignment(METHOD, "CompressedTensorsW8A8Fp8MoE", "experts_ct_fp8", {"moe.act": act})
