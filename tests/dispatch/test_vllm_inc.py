"""AutoRound checkpoints (quant_method auto-round) in vLLM 0.32.0. Every expectation is the oracle's
answer: the engine's own code under an emulated GPU, 9.0 unless said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask
from quantplan.dispatch.trace import Trace

GPTQ, AWQ = "auto_round:auto_gptq", "auto_round:auto_awq"
QKV, O_0 = "model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.o_proj"
O_1 = "model.layers.1.self_attn.o_proj"
Q, K, V = (f"model.layers.0.self_attn.{leaf}_proj" for leaf in "qkv")
W4: dict[str, Any] = {"quant_method": "auto-round", "bits": 4, "group_size": 128}
FP8: dict[str, Any] = {**W4, "bits": 8, "group_size": [128, 128], "data_type": "fp"}
MX8: dict[str, Any] = {**W4, "bits": 8, "group_size": 32, "data_type": "mx_fp"}
MX4: dict[str, Any] = {**MX8, "bits": 4}


def answer(quant: dict[str, Any], capability: str = "9.0", **options: Any) -> Trace:
    trace = ask(quant, capability, **options).trace
    assert trace.error is None, trace.error
    return trace


def of(trace: Trace, path: str) -> tuple[str | None, str | None, str | None]:
    layer = next(x for x in trace.layers if x.path == path)
    return layer.method, layer.kernel, layer.mode


def refused(quant: dict[str, Any], capability: str = "9.0", **options: Any
            ) -> tuple[str, str, str | None]:
    error = ask(quant, capability, **options).trace.error
    assert error is not None
    return error.type, error.message, error.layer


# Schemes.


@pytest.mark.parametrize(("changes", "capability", "method", "kernel", "mode"), [
    ({}, "7.5", "INCLinearMethod", "MarlinLinearKernel", "W4A16"),
    ({}, "9.0", "INCLinearMethod", "MacheteLinearKernel", "W4A16"),
    ({"group_size": 32}, "9.0", "INCLinearMethod", "HummingLinearKernel", "W4A16"),
    ({"bits": 8}, "10.0", "INCLinearMethod", "MarlinLinearKernel", "W8A16"),
    ({"packing_format": AWQ, "sym": False}, "8.9", "INCLinearMethod", "MarlinLinearKernel",
     "W4A16"),
    ({"packing_format": AWQ, "sym": True}, "12.0", "INCLinearMethod", None, None),
    ({"bits": 3}, "10.0", "HummingLinearMethod", None, None),
    ({"bits": 2, "packing_format": AWQ, "sym": False}, "12.0", "HummingLinearMethod", None, None),
    (FP8, "9.0", "INCLinearMethod", "FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "W8A8_fp8"),
    (FP8, "8.9", "INCLinearMethod", "MarlinFP8ScaledMMLinearKernel", "W8A16_fp8"),
    (MX8, "10.0", "INCLinearMethod", "FlashInferCutedslMxfp8LinearKernel", "W8A8_mxfp8"),
    (MX8, "7.5", "INCLinearMethod", "MarlinMxfp8LinearKernel", "W8A16_mxfp8"),
    (MX4, "10.0", "INCLinearMethod", "FlashInferMxFp4LinearKernel", "W4A4_mxfp4"),
    (MX4, "8.0", "INCLinearMethod", "MarlinMxFp4LinearKernel", "W4A16_mxfp4"),
    ({**MX4, "data_type": "mx_fp4e2m1", "group_size": 128}, "8.0", "INCLinearMethod",
     "MarlinMxFp4LinearKernel", "W4A16_mxfp4"),
])
def test_the_scheme_of_a_linear_layer(
    changes: dict[str, Any], capability: str, method: str, kernel: str | None, mode: str | None
) -> None:
    dtype = "float16" if capability == "7.5" else None
    trace = answer({**W4, **changes}, capability, dtype=dtype)
    assert trace.method.config_class == "INCConfig"
    assert of(trace, QKV) == (method, kernel, mode)
    assert of(trace, "lm_head") == ("UnquantizedLinearMethod", None, None)


@pytest.mark.parametrize(("value", "kernel"), [
    ("int8", "MacheteLinearKernel"), ("zz", "MacheteLinearKernel")])
def test_the_variable_of_marlin_s_activations_is_not_read(value: str, kernel: str) -> None:
    trace = answer(W4, env={"VLLM_MARLIN_INPUT_DTYPE": value})
    assert of(trace, QKV) == ("INCLinearMethod", kernel, "W4A16")


def test_block_fp8_reads_it() -> None:
    kind, message, layer = refused(FP8, env={"VLLM_MARLIN_INPUT_DTYPE": "zz"})
    assert (kind, layer) == ("ValueError", QKV)
    assert message.startswith("Invalid value 'zz' for VLLM_MARLIN_INPUT_DTYPE.")


# Single layers: extra_config and blocks.


@pytest.mark.parametrize(("extra", "expected"), [
    ({O_1: {"bits": 16}}, {O_1: "UnquantizedLinearMethod", O_0: "W4A16"}),
    ({O_1: {"bits": 8}}, {O_1: "W8A16", O_0: "W4A16"}),
    ({O_1: {"bits": 2, "group_size": 64}}, {O_1: "HummingLinearMethod"}),
    ({Q: {"bits": 8}, K: {"bits": 8}, V: {"bits": 8}}, {QKV: "W8A16"}),
    ({Q: {"bits": 16}, K: {"bits": 16}, V: {"bits": 16}}, {QKV: "UnquantizedLinearMethod"}),
    ({QKV: {"bits": 16}}, {QKV: "UnquantizedLinearMethod"}),
    ({Q: {"bits": 4}}, {QKV: "W4A16"}),
    ({"lm_head": {"bits": 8}}, {"lm_head": "W8A16"}),
    ({"lm_head": {}}, {"lm_head": "UnquantizedLinearMethod"}),
    ({"lm_head": {"bits": 4}}, {"lm_head": "W4A16"}),
    ({".*o_proj": {"bits": 8}}, {O_0: "W8A16", O_1: "W8A16", QKV: "W4A16"}),
    ({r"model\.layers\.0\.self_attn\.[qkv]_proj": {"bits": 16}}, {QKV: "UnquantizedLinearMethod"}),
    ({r".*qkv_proj": {"bits": 16}}, {QKV: "UnquantizedLinearMethod"}),
    ({"(": {"bits": 8}}, {QKV: "W4A16"}),
    ({"o_proj": {"bits": 16}}, {O_0: "UnquantizedLinearMethod"}),
    ({"self_attn.o_proj": {"bits": 8}}, {O_0: "W8A16"}),
    ({"layers.1.self_attn.o_proj": {"bits": 16}}, {O_1: "UnquantizedLinearMethod", O_0: "W4A16"}),
    ({".*o_proj": {"bits": 8}, "model.*": {"bits": 16}},
     {O_0: "W8A16", QKV: "UnquantizedLinearMethod"}),
])
def test_extra_config(extra: dict[str, Any], expected: dict[str, str]) -> None:
    trace = answer({**W4, "extra_config": extra})
    for path, wanted in expected.items():
        method, _, mode = of(trace, path)
        assert wanted in (method, mode)


@pytest.mark.parametrize(("blocks", "quantized", "plain"), [
    ("model.layers", [QKV, O_1], ["lm_head"]), ("model.layers.0", [QKV], [O_1, "lm_head"]),
    (["model.layers.1"], [O_1], [QKV]), ("model.layers.0.self_attn,lm_head", [QKV, "lm_head"],
                                         [O_1]),
    ([], [QKV, O_1], ["lm_head"]), ("", [QKV, O_1, "lm_head"], []), ("layers", [], [QKV, O_1]),
])
@pytest.mark.parametrize("field", ["block_name_to_quantize", "to_quant_block_names"])
def test_blocks(field: str, blocks: Any, quantized: list[str], plain: list[str]) -> None:
    trace = answer({**W4, field: blocks})
    assert {of(trace, path)[0] for path in quantized} <= {"INCLinearMethod"}
    assert {of(trace, path)[0] for path in plain} <= {"UnquantizedLinearMethod"}


# Refusals.


@pytest.mark.parametrize(("changes", "message"), [
    ({"bits": 9}, "Unsupported weight_bits: 9, currently only support {2, 3, 4, 5, 6, 7, 8}."),
    ({"bits": "4"}, "Unsupported weight_bits: 4, currently only support {2, 3, 4, 5, 6, 7, 8}."),
    ({"group_size": "128"}, "INC group_size must be an int or a 2-D integer sequence, but found "
                            "str."),
    ({"group_size": None}, "INC group_size must be an int or a 2-D integer sequence, but found "
                           "NoneType."),
    ({"group_size": [1, 2, 3]}, "INC block-wise FP8 requires group_size to be a 2-D integer "
                                "sequence, but found [1, 2, 3]."),
    ({"group_size": [128, 128]}, "INC int quantization requires scalar group_size, but found "
                                 "group_size=(128, 128)."),
    ({"packing_format": "auto_round:fp8"},
     "INC int quantization only supports packing_format in ['auto_round:auto_awq', "
     "'auto_round:auto_gptq'], but found packing_format='auto_round:fp8'."),
    ({**FP8, "bits": 4}, "INC block-wise FP8 only supports bits=8, but found bits=4."),
    ({**FP8, "group_size": 32}, "INC block-wise FP8 requires a 2-D group_size, but found "
                                "group_size=32."),
    ({**FP8, "sym": False}, "INC block-wise FP8 only supports symmetric weights."),
    ({**FP8, "backend": "gptq"}, "INC block-wise FP8 only supports backend='auto', but found "
                                 "backend='gptq'."),
    ({**FP8, "fmt": "e5m2"}, "INC block-wise FP8 only supports fmt='e4m3', but found fmt='e5m2'."),
    ({**FP8, "act_dynamic": False}, "INC block-wise FP8 only supports act_dynamic=True, but found "
                                    "act_dynamic=False."),
    ({**MX8, "bits": 6}, "INC MXFP only supports bits=4 or bits=8, but found bits=6."),
    ({**MX8, "group_size": 128}, "INC MXFP only supports group_size=32, but found group_size=128."),
    ({**MX8, "packing_format": GPTQ}, "INC MXFP only supports packing_format='auto_round:"
                                      "llm_compressor', but found 'auto_round:auto_gptq'."),
    ({**MX8, "act_bits": 16}, "INC MXFP8 only supports act_bits=8, but found act_bits=16."),
])
def test_the_constructor_refuses(changes: dict[str, Any], message: str) -> None:
    assert refused({**W4, **changes}) == ("ValidationError", message, None)


@pytest.mark.parametrize("field", ["bits", "group_size"])
def test_fields_that_must_be_there(field: str) -> None:
    quant = {name: value for name, value in W4.items() if name != field}
    assert refused(quant)[1] == (
        f"Cannot find any of ['{field}'] in the model's quantization config.")


MARLIN_ONLY = ("INC quantization with bits={}, sym={} is not supported. Only 4-bit and 8-bit "
               "symmetric quantization is supported with Marlin kernels.")
AWQ_BITS = ("Unsupported num_bits = {}. Supported: 4. For 8-bit AWQ, use Marlin backend by setting "
            "backend='awq:marlin' or backend='marlin'.")
NEGATIVE = "Trying to create tensor with negative dimension -4096: [-4096, 6144]"


@pytest.mark.parametrize(("changes", "kind", "message", "layer"), [
    ({"sym": False}, "NotImplementedError", MARLIN_ONLY.format(4, False), QKV),
    ({"group_size": 256}, "NotImplementedError", MARLIN_ONLY.format(4, True), QKV),
    ({"backend": "gptq"}, "NotImplementedError", MARLIN_ONLY.format(4, True), QKV),
    ({"bits": 8, "packing_format": AWQ}, "ValueError", AWQ_BITS.format(8), QKV),
    ({"packing_format": AWQ, "group_size": 96}, "ValueError",
     "The input size is not aligned with the quantized weight shape. This can be caused by too "
     "large tensor parallel size.", QKV),
    ({"packing_format": AWQ, "group_size": 0}, "ZeroDivisionError", "integer modulo by zero", QKV),
    ({"bits": 3, "group_size": -1}, "RuntimeError", NEGATIVE, QKV),
    ({**MX4, "data_type": "mx_fp4", "bits": 6}, "NotImplementedError",
     "No INC scheme found for layer config: INCLayerConfig(bits=6, group_size=32, sym=True, "
     "packing_format='auto_round:llm_compressor', backend='auto', data_type='mx_fp4', "
     "quantized=True)", None),
    ({"extra_config": {O_1: {"bits": 12}}}, "NotImplementedError", MARLIN_ONLY.format(12, True),
     O_1),
    ({"extra_config": {O_1: {"bits": 4, "group_size": "x"}}}, "ValueError",
     "INC group_size must be an int or a 2-D integer sequence, but found str.", O_1),
    ({"sym": {}}, "TypeError", "unhashable type: 'dict'", QKV),
    ({"extra_config": {Q: {"bits": 8}}}, "ValueError",
     f"Fused module '{QKV}' requires consistent quant config for {[Q, K, V]}", QKV),
])
def test_a_layer_refuses(changes: dict[str, Any], kind: str, message: str, layer: str | None
                         ) -> None:
    assert refused({**W4, **changes}) == (kind, message, layer)


def test_low_bits_need_the_package_humming() -> None:
    assert refused({**W4, "bits": 3}, libs={"humming": False}) == (
        "ModuleNotFoundError", "No module named 'humming'", QKV)
    assert of(answer(W4, libs={"humming": False}), QKV)[1] == "MacheteLinearKernel"


def test_low_bits_below_7_5_are_selected_and_fail_while_loading() -> None:
    trace = answer({**W4, "bits": 3}, "7.0", dtype="float16")
    assert of(trace, QKV)[0] == "HummingLinearMethod"
    assert "humming-no-activations" in [f.id for f in trace.findings if f.severity == "error"]


CHATGLM = {
    "architectures": ["ChatGLMModel"], "model_type": "chatglm", "num_layers": 1,
    "hidden_size": 2048, "ffn_hidden_size": 5632, "num_attention_heads": 16,
    "multi_query_group_num": 2, "multi_query_attention": True, "kv_channels": 128,
    "padded_vocab_size": 32064, "seq_length": 4096, "torch_dtype": "bfloat16",
    "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "layernorm_epsilon": 1e-05,
    "post_layer_norm": True, "original_rope": True,
}
QWEN3_NEXT = {
    **LLAMA, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
    "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "intermediate_size": 5120, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "full_attention_interval": 1, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "mlp_only_layers": [],
}


@pytest.mark.parametrize(("model", "head", "method"), [
    (CHATGLM, "transformer.output_layer", "UnquantizedLinearMethod"),
    (QWEN3_NEXT, "lm_head", "UnquantizedEmbeddingMethod")])
def test_a_head_is_one_by_its_class(model: Any, head: str, method: str) -> None:
    """ChatGLM's has another name; Qwen3-Next builds its own without the config."""
    assert of(answer(W4, model=model), head)[0] == method
