"""Compressed-tensors: which scheme class a config group becomes, what its arguments must be, and
what each scheme asks of a layer (model_executor/layers/quantization/compressed_tensors/)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import QWEN_72B, ask, golden_rows, message, scheme
from quantplan.dispatch.ct_args import Args, read_args
from quantplan.dispatch.predicates import applies
from quantplan.dispatch.trace import Refusal
from quantplan.dispatch.vllm.ct_schemes import Group, group_facts, scheme_of
from quantplan.tables.engine_loading import load_engine

from quantplan import Explanation

QKV = "model.layers.0.self_attn.qkv_proj"
TABLE = load_engine("vllm", "0.32.0")
SCHEMES = TABLE["schemes"]


def gpu(capability: int) -> dict[str, Any]:
    """Return the GPU facts that scheme rows read."""
    return {"gpu.capability": capability, "gpu.fp8_tensor_cores": capability >= 89}


def args(**fields: Any) -> Args:
    found = read_args(fields, "weights")
    assert found is not None
    return found


def fp(strategy: str, bits: int = 8, **more: Any) -> Args:
    """Return float arguments of a strategy."""
    return args(num_bits=bits, type="float", strategy=strategy, **more)


def whole(strategy: str, bits: int = 8, **more: Any) -> Args:
    """Return integer arguments of a strategy."""
    return args(num_bits=bits, type="int", strategy=strategy, **more)


BLOCK = fp("block", block_structure=[128, 128])
GROUP_4 = whole("group", 4, group_size=128)
FP8_TOKEN, INT8_TOKEN = fp("token", dynamic=True), whole("token", dynamic=True)
INT4_TOKEN = whole("token", 4, dynamic=True)
FP8_TENSOR, INT8_TENSOR = fp("tensor"), whole("tensor")
NVFP4 = fp("tensor_group", 4, group_size=16)
NVFP4_ACT = fp("tensor_group", 4, group_size=16, dynamic="local")
MXFP4 = fp("group", 4, group_size=32, scale_dtype="torch.uint8")
MXFP8 = fp("group", 8, group_size=32, scale_dtype="torch.uint8")

# weights, inputs, outputs, format, capability -> scheme: one line at least per rule of
# CompressedTensorsConfig._get_scheme_from_parts.
Case = tuple[Args, "Args | None", "Args | None", str, int, str]
CASES: list[Case] = [
    (NVFP4, NVFP4_ACT, None, "nvfp4-pack-quantized", 100, "CompressedTensorsW4A4Fp4"),
    (NVFP4, None, None, "nvfp4-pack-quantized", 90, "CompressedTensorsW4A4Fp4"),
    (MXFP4, FP8_TOKEN, None, "mxfp4-pack-quantized", 100, "CompressedTensorsW4A8Mxfp4"),
    (MXFP4, fp("group", 4, group_size=32, dynamic=True), None, "mxfp4-pack-quantized", 100,
     "CompressedTensorsW4A4Mxfp4"),
    (MXFP4, None, None, "mxfp4-pack-quantized", 80, "CompressedTensorsW4A4Mxfp4"),
    (MXFP8, fp("group", 8, group_size=32, dynamic=True), None, "mxfp8-quantized", 100,
     "CompressedTensorsW8A8Mxfp8"),
    (GROUP_4, FP8_TOKEN, None, "pack-quantized", 90, "CompressedTensorsW4A8Fp8"),
    (whole("channel", 4), INT8_TENSOR, INT8_TENSOR, "int-quantized", 80,
     "CompressedTensorsWNA8O8Int"),
    (GROUP_4, INT8_TENSOR, INT8_TENSOR, "pack-quantized", 80, "CompressedTensorsWNA8O8Int"),
    (GROUP_4, INT8_TOKEN, None, "pack-quantized", 80, "CompressedTensorsWNA8Int"),
    (whole("channel"), INT8_TOKEN, None, "pack-quantized", 80, "CompressedTensorsWNA8Int"),
    (GROUP_4, INT4_TOKEN, None, "pack-quantized", 80, "CompressedTensorsWNA4Int"),
    (GROUP_4, None, None, "pack-quantized", 80, "CompressedTensorsWNA16"),
    (whole("channel"), None, None, "pack-quantized", 75, "CompressedTensorsWNA16"),
    (whole("group", 3, group_size=64), None, None, "pack-quantized", 90,
     "CompressedTensorsWNA16"),
    (fp("channel"), FP8_TOKEN, None, "float-quantized", 89, "CompressedTensorsW8A8Fp8"),
    (fp("tensor"), FP8_TENSOR, None, "float-quantized", 120, "CompressedTensorsW8A8Fp8"),
    (BLOCK, fp("group", 8, group_size=128, dynamic=True), None, "float-quantized", 90,
     "CompressedTensorsW8A8Fp8"),
    (fp("channel"), FP8_TOKEN, None, "float-quantized", 86, "CompressedTensorsW8A16Fp8"),
    (fp("tensor"), FP8_TENSOR, None, "naive-quantized", 75, "CompressedTensorsW8A16Fp8"),
    (fp("channel"), None, None, "float-quantized", 120, "CompressedTensorsW8A16Fp8"),
    (BLOCK, None, None, "float-quantized", 90, "CompressedTensorsW8A16Fp8"),
    (whole("channel"), INT8_TOKEN, None, "int-quantized", 80, "CompressedTensorsW8A8Int8"),
    (whole("tensor"), INT8_TENSOR, None, "int-quantized", 120, "CompressedTensorsW8A8Int8"),
    (whole("channel"), whole("token", dynamic=True, symmetric=False), None, "int-quantized", 75,
     "CompressedTensorsW8A8Int8"),
    (whole("channel", 4), INT8_TOKEN, None, "int-quantized", 80, "CompressedTensorsW4A8Int"),
    (GROUP_4, INT8_TOKEN, None, "int-quantized", 80, "CompressedTensorsW4A8Int"),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case[-1]} on {case[-2]}" for case in CASES])
def test_the_first_rule_that_fits(case: Case) -> None:
    weights, inputs, outputs, format_, capability, name = case
    row = scheme_of(Group(weights, inputs, outputs, format_), TABLE, gpu(capability), QKV)
    assert row["id"] == name


def test_every_scheme_of_the_table_is_reached() -> None:
    assert {name for *_, name in CASES} == set(SCHEMES)


def test_every_line_of_every_scheme_is_reached() -> None:
    lines = {(row["id"], index) for row in SCHEMES.values() for index in range(len(row["when"]))}
    reached = {(name, index) for w, i, o, f, c, name in CASES
               for index, when in enumerate(SCHEMES[name]["when"])
               if applies(when, {**gpu(c), **group_facts(Group(w, i, o, f), TABLE)})}
    assert reached == lines


@pytest.mark.parametrize("weights", [whole("channel"), fp("channel", symmetric=False)])
def test_an_activation_format_without_input_activations(weights: Args) -> None:
    """compressed_tensors.py:_is_static_tensor_w8a8 reads num_bits of what is None."""
    with pytest.raises(Refusal) as raised:
        scheme_of(Group(weights, None, None, "int-quantized"), TABLE, gpu(90), QKV)
    assert (raised.value.error.type, raised.value.error.message) == (
        "AttributeError", "'NoneType' object has no attribute 'num_bits'")


@pytest.mark.parametrize("weights, inputs, format_, capability", [
    (GROUP_4, FP8_TOKEN, "pack-quantized", 89), (GROUP_4, FP8_TOKEN, "pack-quantized", 100),
    (whole("tensor", 4), None, "pack-quantized", 90),
    (fp("channel"), FP8_TOKEN, "pack-quantized", 90), (fp("channel"), FP8_TOKEN, "dense", 90),
    (fp("tensor"), fp("tensor", symmetric=False), "dense", 90),
    (whole("group", 8, group_size=128), INT8_TOKEN, "int-quantized", 90),
    (whole("channel", symmetric=False), INT8_TOKEN, "int-quantized", 90),
    (whole("channel"), INT8_TENSOR, "pack-quantized", 90)])
def test_no_rule_fits(
    weights: Args, inputs: Args | None, format_: str, capability: int
) -> None:
    with pytest.raises(Refusal) as raised:
        scheme_of(Group(weights, inputs, None, format_), TABLE, gpu(capability), QKV)
    error = raised.value.error
    assert (error.stage, error.type, error.layer) == (
        "layer assignment", "NotImplementedError", QKV)
    assert error.message == (
        f"No compressed-tensors compatible scheme was found for layer_name={QKV!r}, weight_quant="
        f"{weights!r}, input_quant={inputs!r}, output_quant=None, format={format_!r}")


@pytest.mark.parametrize("name", ["llama8b/ct-w4a8-fp8/89", "llama8b/ct-nofmt/90"])
def test_the_words_are_the_engine_s(name: str) -> None:
    """Arguments are printed with every default that the engine fills in."""
    row = golden_rows()[name]
    quant = row["case"]["config"]["quantization_config"]
    capability = row["case"]["capability"]
    answer = ask(quant, f"{capability // 10}.{capability % 10}", dtype=row["case"]["dtype"])
    assert message(answer) == row["expect"]["error"]["message"]


def test_nvfp4_weights_want_nvfp4_inputs() -> None:
    with pytest.raises(Refusal) as raised:
        scheme_of(Group(NVFP4, FP8_TOKEN, None, "nvfp4-pack-quantized"), TABLE, gpu(100), QKV)
    assert raised.value.error.message == (
        "For NVFP4 weights, input quantization must also be NVFP4 format, None for NVFP4A16")


# What the scheme makes of a layer.


def chosen(answer: Explanation, name: str = "qkv_proj") -> tuple[str | None, ...]:
    layer = next(layer for layer in answer.trace.layers if layer.path.endswith(name))
    return layer.scheme, layer.kernel, layer.mode, layer.act


@pytest.mark.parametrize("quant, capability, expected", [
    ("ct-fp8-dynamic", "8.9", ("CompressedTensorsW8A8Fp8", "CutlassFP8ScaledMMLinearKernel",
                               "W8A8_fp8", "per_token")),
    ("ct-fp8-static", "10.0", ("CompressedTensorsW8A8Fp8", "FlashInferFP8ScaledMMLinearKernel",
                               "W8A8_fp8", "static")),
    ("ct-fp8-dynamic", "8.6", ("CompressedTensorsW8A16Fp8", "HummingFP8ScaledMMLinearKernel",
                               "W8A16_fp8", "none")),
    ("ct-fp8-block", "9.0", ("CompressedTensorsW8A8Fp8",
                             "FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "W8A8_fp8",
                             "group")),
    ("ct-fp8-w8a16", "9.0", ("CompressedTensorsW8A16Fp8", "HummingFP8ScaledMMLinearKernel",
                             "W8A16_fp8", "none")),
    ("ct-w8a8-int8", "8.0", ("CompressedTensorsW8A8Int8", "CutlassInt8ScaledMMLinearKernel",
                             "W8A8_int8", "per_token")),
    ("ct-w8a8-int8-static", "8.0", ("CompressedTensorsW8A8Int8",
                                    "CutlassInt8ScaledMMLinearKernel", "W8A8_int8", "static")),
    ("ct-w4a16", "8.0", ("CompressedTensorsWNA16", "MarlinLinearKernel", "W4A16", "none")),
    ("ct-w8a16", "9.0", ("CompressedTensorsWNA16", "MacheteLinearKernel", "W8A16", "none"))])
def test_a_scheme_s_kernel_and_mode(
    quant: str, capability: str, expected: tuple[str, ...]
) -> None:
    """Rows llama8b/QUANT/CAPABILITY; `act` is the scheme's activation quantization."""
    assert chosen(ask(quant, capability)) == expected


def test_why_fp8_is_weight_only_is_told() -> None:
    def why(quant: str, capability: str) -> set[str | None]:
        return {layer.why for layer in ask(quant, capability).trace.layers if layer.scheme}

    assert why("ct-fp8-dynamic", "8.6") == {"this GPU (8.6) has no FP8 tensor cores"}
    assert why("ct-fp8-w8a16", "8.9") == {"the checkpoint quantizes weights only"}
    assert why("ct-fp8-dynamic", "8.9") == {None}


def test_a_scheme_above_the_gpu() -> None:
    """Rows llama8b/ct-w8a8-int8/70."""
    answer = ask("ct-w8a8-int8", "7.0")
    error = answer.trace.error
    assert error is not None
    assert (error.stage, error.type, error.layer, error.message) == (
        "layer assignment", "RuntimeError", QKV, "Quantization scheme is not supported for the "
        "current GPU. Min capability: 75. Current capability: 70.")


@pytest.mark.parametrize("bits, kernel", [(2, "HummingLinearKernel"), (3, "HummingLinearKernel"),
                                          (4, "MarlinLinearKernel"), (5, "HummingLinearKernel"),
                                          (6, "HummingLinearKernel"), (7, "HummingLinearKernel"),
                                          (8, "MarlinLinearKernel")])
def test_odd_widths_have_only_humming(bits: int, kernel: str) -> None:
    """compressed_tensors_wNa16.py:WNA16_SUPPORTED_TYPES_MAP; vllm-dispatch 6i."""
    answer = ask(scheme("ct-w4a16", weights={"num_bits": bits}), "8.0")
    assert chosen(answer)[1:3] == (kernel, f"W{bits}A16")


def test_an_odd_width_without_humming_has_no_kernel() -> None:
    answer = ask(scheme("ct-w4a16", weights={"num_bits": 3}), "8.0", libs={"humming": False})
    assert message(answer).startswith(
        "Failed to find a kernel that can implement the WNA16 linear layer. Reasons: \n")
    assert message(answer).endswith(
        " HummingLinearKernel cannot implement due to: Humming is not installed")


def test_an_odd_width_depends_on_humming() -> None:
    """Nothing else can run it, so an unknown Humming makes the answer conditional, not an error."""
    answer = ask(scheme("ct-w4a16", weights={"num_bits": 3}), "8.0", libs={"humming": None})
    assert answer.trace.outcome == "conditional"


def test_nine_bits() -> None:
    answer = ask(scheme("ct-w4a16", weights={"num_bits": 9}), "8.0")
    assert message(answer) == (
        "Unsupported num_bits = 9. Supported num_bits = [2, 3, 4, 5, 6, 7, 8]")


@pytest.mark.parametrize("quant, tp, layer, words", [
    ("ct-fp8-block", 2, "mlp.gate_up_proj",
     "Weight output_partition_size = 14784 is not divisible by weight quantization block_n = 128."),
    ("ct-w4a16", 2, "mlp.down_proj",
     "Weight input_size_per_partition=14784 for layer 'model.layers.0.mlp.down_proj' is not "
     "divisible by group_size=128. This happens when tensor_parallel_size splits the layer input "
     "into shards that are not a whole number of quant groups. Consider reducing "
     "tensor_parallel_size.")])
def test_a_group_or_block_that_tensor_parallelism_cuts(
    quant: str, tp: int, layer: str, words: str
) -> None:
    """Rows qwen72b/QUANT/CAPABILITY/tp2."""
    answer = ask(quant, model=QWEN_72B, tp=tp)
    error = answer.trace.error
    assert error is not None
    assert (error.stage, error.type, error.layer, error.message) == (
        "shapes under TP", "ValueError", f"model.layers.0.{layer}", words)


def test_channelwise_groups_are_never_cut() -> None:
    """_check_whole_groups returns before for group_size -1 under a row split."""
    assert ask("ct-w4a16-chan", model=QWEN_72B, tp=2).trace.outcome == "ok"


@pytest.mark.parametrize("inputs", [{"strategy": "tensor", "dynamic": False},
                                    {"strategy": "token", "dynamic": True}])
def test_block_weights_with_other_inputs_than_groups(inputs: dict[str, Any]) -> None:
    """The engine's own answer for static per-tensor inputs is an AssertionError without text
    (compressed_tensors_w8a8_fp8.py: block weights assert dynamic group activations)."""
    answer = ask(scheme("ct-fp8-block", input_activations={**inputs, "group_size": None}))
    if inputs["dynamic"]:
        assert answer.trace.outcome == "ok"
    else:
        assert answer.trace.error is not None
        assert answer.trace.error.type == "AssertionError"
