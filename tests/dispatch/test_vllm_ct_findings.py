"""What compressed-tensors layers come to after their kernel was chosen: the cited code fails there,
behind what the engine's selection answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, QWEN_72B, ask, found, only, quantization, scheme, starts

TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}


def integers(bits: int, act_bits: int, symmetric: bool, **group: Any) -> dict[str, Any]:
    """Return a pack-quantized config of channelwise integers with dynamic activations."""
    found: dict[str, Any] = scheme("ct-w4a16", weights={
        "num_bits": bits, "symmetric": symmetric, "strategy": "channel", "group_size": None},
        input_activations={**TOKEN, "num_bits": act_bits}, **group)
    return found


@pytest.mark.parametrize("bits, act_bits, symmetric, told", [
    (8, 8, False, True), (8, 8, True, False), (6, 8, False, False), (4, 4, False, False)])
def test_zero_points_of_equal_widths(bits: int, act_bits: int, symmetric: bool, told: bool) -> None:
    """humming/linear.py:prepare_humming_linear_layer_config raises; at 4 bits Marlin is chosen."""
    answer = ask(integers(bits, act_bits, symmetric), "8.0")
    assert bool(found(answer, "humming-zero-points")) is told
    assert answer.trace.outcome == "ok"


def test_four_bit_zero_points_where_humming_is_chosen() -> None:
    answer = ask(integers(4, 4, False), "8.0", env={"VLLM_DISABLED_KERNELS": "MarlinLinearKernel,"
                                                    "TritonW4A16LinearKernel"})
    assert only(answer, "humming-zero-points").message == (
        "model.layers.0.self_attn.qkv_proj: Humming does not support asymmetric (zero_point) "
        "weights when weight and activation bit widths are equal (W4A4)")


def test_int4_weights_of_the_cpu_s_layout() -> None:
    """Format int-quantized keeps int8 values; only Humming accepts the type int4 on CUDA."""
    answer = ask(integers(4, 8, True, format="int-quantized"), "8.0")
    layer = next(layer for layer in answer.trace.layers if layer.k and layer.layer_index == 0)
    assert (layer.scheme, layer.kernel) == ("CompressedTensorsW4A8Int", "HummingLinearKernel")
    assert only(answer, "weights-one-per-byte").severity == "warning"


def targeting(target: str, quant: str = "ct-w4a16", **weights: Any) -> dict[str, Any]:
    group = scheme(quant, weights=weights)["config_groups"]["group_0"]
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": [],
            "config_groups": {"group_0": {**group, "targets": [target]}}}


def test_an_lm_head_that_is_served_as_an_embedding() -> None:
    """Nine bits are a ValueError of the scheme; get_quant_method then takes the embedding's."""
    answer = ask(targeting("lm_head", num_bits=9), "8.0")
    head = answer.trace.layers[-1]
    assert (head.path, head.method) == ("lm_head", "CompressedTensorsEmbeddingWNA16Int")
    assert only(answer, "head-as-embedding").stage == "first forward"
    assert starts(answer) == "no"


def test_a_tied_lm_head_that_is_quantized() -> None:
    answer = ask(targeting("lm_head"), "8.0", model={**LLAMA, "tie_word_embeddings": True})
    assert answer.trace.layers[-1].kernel == "MarlinLinearKernel"
    assert only(answer, "tied-lm-head-quantized").severity == "error"
    assert not found(ask(targeting("lm_head"), "8.0"), "tied-lm-head-quantized")


def test_a_packed_embedding_leaves_nothing_to_tie() -> None:
    answer = ask(targeting("Embedding"), "8.0", model={**LLAMA, "tie_word_embeddings": True})
    assert answer.trace.error is not None
    assert (answer.trace.error.type, answer.trace.error.message) == (
        "AttributeError", "'VocabParallelEmbedding' object has no attribute 'weight'")


def test_a_bias_in_a_rotated_layer() -> None:
    """Qwen2's qkv_proj has one: CompressedTensorsLinearTransformMethod.apply asserts."""
    rule = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}
    quant = quantization("ct-w4a16", transform_config={"config_groups": {"R": rule}})
    note = only(ask(quant, "8.0", model=QWEN_72B), "bias-in-rotated-layer")
    assert note.message.startswith("model.layers.0.self_attn.qkv_proj: ")
    assert not found(ask(quant, "8.0"), "bias-in-rotated-layer")


def test_fp8_activations_that_humming_cannot_compute_with() -> None:
    """MXFP4 weights keep the FP8 activations that the checkpoint asks for, below 8.9 too."""
    quant = scheme("ct-mxfp4a16", input_activations={**TOKEN, "type": "float"})
    assert found(ask(quant, "8.0"), "humming-no-activations")
    assert not found(ask(quant, "8.9"), "humming-no-activations")


@pytest.mark.parametrize("capability, group, kernel", [
    ("9.0", 128, "MacheteLinearKernel"),
    ("8.9", 128, "MarlinLinearKernel"),
    ("9.0", 32, "HummingLinearKernel")])
def test_int8_activations_that_no_kernel_takes(
    capability: str, group: int, kernel: str
) -> None:
    """CompressedTensorsWNA8Int asks its kernels in 16 bits; the oracle's kernels and modes."""
    answer = ask(scheme("ct-w4a16", weights={"group_size": group}, input_activations=TOKEN),
                 capability)
    (layer,) = [x for x in answer.trace.layers if x.path == "model.layers.0.self_attn.o_proj"]
    assert (layer.scheme, layer.kernel, layer.mode) == ("CompressedTensorsWNA8Int", kernel, "W4A16")
    assert only(answer, "weight-only").stage == "mode and numerics"
    assert not found(ask("ct-w4a16", capability), "weight-only")


@pytest.mark.parametrize("capability", ["8.9", "9.0", "12.0"])
def test_weights_only_checkpoints_ask_for_no_activations(capability: str) -> None:
    nvfp4 = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "group_size": 16}
    assert not found(ask(nvfp4, capability), "weight-only")


@pytest.mark.parametrize("capability, options, told", [
    ("8.0", {}, False), ("10.0", {}, True), ("10.0", {"linear_backend": "marlin"}, False)])
def test_weight_only_mxfp4_whose_activations_are_quantized(
    capability: str, options: dict[str, Any], told: bool
) -> None:
    """compressed_tensors.py:_get_scheme_from_parts: CompressedTensorsW4A4Mxfp4 for every MXFP4
    weight, whatever is said of the inputs; Marlin's kernel leaves them alone."""
    answer = ask(scheme("ct-mxfp4", input_activations=None), capability, **options)
    assert bool(found(answer, "activations-not-asked")) is told
    assert not found(answer, "weight-only")
