"""The methods that few checkpoints have, in vLLM 0.32.0: experts_int8, mxfp4, deepseek_v4_fp8,
fbgemm_fp8, fp_quant and torchao, on linear layers. Every expectation but torchao's is the oracle's
answer; its stand-in for torchao reads no config."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, quantization
from quantplan.dispatch.trace import Trace
from quantplan.tables.errors import NotKnownError

QKV, O_0 = "model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.o_proj"


def of(trace: Trace, path: str = QKV) -> tuple[str | None, str | None, str | None]:
    assert trace.error is None, trace.error
    layer = next(x for x in trace.layers if x.path == path)
    return layer.method, layer.kernel, layer.mode


def refused(*args: Any, **options: Any) -> tuple[str, str, str | None]:
    error = ask(*args, **options).trace.error
    assert error is not None
    return error.type, error.message, error.layer


PLAIN = ("UnquantizedLinearMethod", None, None)


@pytest.mark.parametrize(("quant", "requested", "config_class"), [
    ({"quant_method": "experts_int8"}, None, "ExpertsInt8Config"),
    (None, "experts_int8", "ExpertsInt8Config"), ({"quant_method": "mxfp4"}, None, "Mxfp4Config"),
    ({"quant_method": "gpt_oss_mxfp4"}, None, "GptOssMxfp4Config"),
    (None, "gpt_oss_mxfp4", "GptOssMxfp4Config"),
])
def test_methods_of_experts_leave_linear_layers(
    quant: Any, requested: str | None, config_class: str
) -> None:
    trace = ask(quant, quantization=requested).trace
    assert trace.method.config_class == config_class
    assert of(trace) == PLAIN
    assert of(trace, "lm_head")[0] == "UnquantizedEmbeddingMethod"
    name = trace.method.resolved
    assert refused(quant, "7.5", quantization=requested, dtype="float16")[1] == (
        f"The quantization method {name} is not supported for the current GPU. Minimum "
        "capability: 80. Current capability: 75.")


# deepseek_v4_fp8: block FP8, or MXFP8 where the blocks are 32 x 32.


def v4(block: list[int], **fields: Any) -> dict[str, Any]:
    return {"quant_method": "deepseek_v4_fp8", "activation_scheme": "dynamic",
            "weight_block_size": block, **fields}


@pytest.mark.parametrize(("quant", "capability", "method", "kernel", "mode"), [
    (v4([32, 32]), "8.0", "ModelOptLinearMethod", "MarlinMxfp8LinearKernel", "W8A16_mxfp8"),
    (v4([32, 32]), "9.0", "ModelOptLinearMethod", "HummingMxfp8LinearKernel", "W8A16"),
    (v4([32, 32]), "10.0", "ModelOptLinearMethod", "FlashInferCutedslMxfp8LinearKernel",
     "W8A8_mxfp8"),
    (v4([32, 32]), "12.0", "ModelOptLinearMethod", "FlashInferCutlassMxfp8LinearKernel",
     "W8A8_mxfp8"),
    (v4([128, 128]), "8.9", "Fp8LinearMethod", "MarlinFP8ScaledMMLinearKernel", "W8A16_fp8"),
    (v4([128, 128]), "10.0", "Fp8LinearMethod", "DeepGemmFp8BlockScaledMMKernel", "W8A8_fp8"),
    (None, "9.0", "Fp8LinearMethod", "CutlassFP8ScaledMMLinearKernel", "W8A8_fp8"),
])
def test_deepseek_v4(
    quant: Any, capability: str, method: str, kernel: str, mode: str
) -> None:
    trace = ask(quant, capability, quantization="deepseek_v4_fp8").trace
    assert of(trace) == (method, kernel, mode)
    assert next(x for x in trace.layers if x.module == "Attention").method == "Fp8KVCacheMethod"


@pytest.mark.parametrize(("expert_dtype", "block", "kernel"), [
    ("fp8", [32, 32], "MarlinFP8ScaledMMLinearKernel"),
    ("fp4", [32, 32], "FlashInferCutedslMxfp8LinearKernel"),
    ("fp8", [128, 128], "DeepGemmFp8BlockScaledMMKernel"),
])
def test_the_dtype_of_the_experts_tells_the_scales_of_linear_layers(
    expert_dtype: str, block: list[int], kernel: str
) -> None:
    model = {**LLAMA, "expert_dtype": expert_dtype}
    assert of(ask(v4(block), "10.0", model=model).trace)[1] == kernel


@pytest.mark.parametrize("block", [[32, 32], [128, 128]])
@pytest.mark.parametrize("expert_dtype", ["bf16", None])
def test_an_unknown_dtype_of_experts(expert_dtype: str | None, block: list[int]) -> None:
    model = {**LLAMA, "expert_dtype": expert_dtype}
    assert refused(v4(block), "10.0", model=model) == (
        "ValueError", f"Unsupported DeepSeek V4 expert_dtype={expert_dtype!r}; expected one of "
        "('fp4', 'fp8').", QKV)


# Deprecated methods.

ALLOWED = {"allow_deprecated_quantization": True}
FP_QUANT = {"quant_method": "fp_quant", "hadamard_group_size": 32, "forward_dtype": "mxfp4",
            "forward_method": "abs_max", "modules_to_not_convert": ["lm_head"]}


@pytest.mark.parametrize(("capability", "kernel", "mode"), [
    ("8.0", "MarlinFP8ScaledMMLinearKernel", "W8A16_fp8"),
    ("8.9", "CutlassFP8ScaledMMLinearKernel", "W8A8_fp8"),
    ("10.0", "CutlassFP8ScaledMMLinearKernel", "W8A8_fp8"),
])
def test_fbgemm(capability: str, kernel: str, mode: str) -> None:
    trace = ask("fbgemm", capability, **ALLOWED).trace
    assert of(trace) == ("FBGEMMFp8LinearMethod", kernel, mode)


def test_fbgemm_s_skipped_layers() -> None:
    parts = [QKV.replace("qkv", leaf) for leaf in "qkv"]
    quant = quantization("fbgemm", modules_to_not_convert=parts)
    assert of(ask(quant, **ALLOWED).trace) == PLAIN
    quant = quantization("fbgemm", modules_to_not_convert=parts[:1])
    assert refused(quant, **ALLOWED)[1].startswith("Detected some but not all shards of")


@pytest.mark.parametrize(("changes", "kind", "message"), [
    ({"hadamard_group_size": 12288}, "ValueError",
     "The input size is not aligned with the quantized weight shape. This can be caused by too "
     "large tensor parallel size. Or other skill issues."),
    ({"forward_dtype": "mxfp8"}, "AssertionError", "Only mxfp4 and nvfp4 are supported for now"),
])
def test_fp_quant_refuses(changes: dict[str, Any], kind: str, message: str) -> None:
    assert refused({**FP_QUANT, **changes}, "10.0", **ALLOWED) == (kind, message, QKV)


def test_fp_quant() -> None:
    trace = ask(FP_QUANT, "10.0", **ALLOWED).trace
    assert of(trace) == ("FPQuantLinearMethod", None, None)
    assert of(trace, "lm_head")[0] == "UnquantizedLinearMethod"
    assert refused(FP_QUANT, "9.0", **ALLOWED)[1].endswith(
        "Minimum capability: 100. Current capability: 90.")
    skipped = ask({**FP_QUANT, "modules_to_not_convert": ["o_proj"]}, "10.0", **ALLOWED).trace
    assert (of(skipped, O_0), of(skipped)[0]) == (PLAIN, "FPQuantLinearMethod")


@pytest.mark.parametrize(("quant", "field"), [
    ({"quant_method": "fp_quant"}, "hadamard_group_size"),
    ({"quant_method": "fbgemm_fp8"}, "modules_to_not_convert"),
    ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": []}, "activation_scale_ub"),
])
def test_fields_that_must_be_there(quant: dict[str, Any], field: str) -> None:
    assert refused(quant, "10.0", **ALLOWED)[1] == (
        f"Cannot find any of ['{field}'] in the model's quantization config.")


# A flag without a checkpoint config.


@pytest.mark.parametrize(("requested", "kind", "message"), [
    ("torchao", "TypeError",
     "TorchAOConfig.__init__() missing 1 required positional argument: 'torchao_config'"),
    ("fbgemm_fp8", "TypeError", "FBGEMMFp8Config.__init__() missing 2 required positional "
                                "arguments: 'ignore_list' and 'input_scale_ub'"),
    ("quark", "TypeError",
     "QuarkConfig.__init__() missing 1 required positional argument: 'quant_config'"),
    ("inc", "ValidationError", "Cannot find the config file for inc"),
])
def test_classes_that_are_made_of_nothing(requested: str, kind: str, message: str) -> None:
    assert refused(None, quantization=requested, **ALLOWED) == (kind, message, None)


def test_a_file_may_end_with_the_name_that_the_class_asks_for() -> None:
    """weight_utils.py:get_quant_config: f.endswith(x)."""
    files = {"my_quantization_config.json": {"bits": 4, "group_size": 128}}
    assert of(ask(None, quantization="inc", side_files=files).trace)[0] == "INCLinearMethod"


# torchao.


def ao(kind: str, data: Any = None, **fields: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", **fields,
            "quant_type": {"default": {"_type": kind, "_data": data or {}, "_version": 1}}}


ON: dict[str, Any] = {"libs": {"torchao": True}}


def test_torchao_is_not_installed_by_default() -> None:
    assert refused(ao("Int8WeightOnlyConfig")) == (
        "ImportError", "Please install torchao>=0.10.0 via `pip install torchao>=0.10.0` to use "
        "torchao quantization.", None)
    with pytest.raises(NotKnownError, match="whether the package torchao is installed"):
        ask(ao("Int8WeightOnlyConfig"), libs={"torchao": None})


def test_torchao_s_own_tensors_run_without_a_kernel_of_the_engine() -> None:
    trace = ask(ao("Int8WeightOnlyConfig", modules_to_not_convert=["o_proj", "layers.1"]),
                **ON).trace
    assert of(trace) == ("TorchAOLinearMethod", None, None)
    assert of(trace, O_0) == of(trace, QKV.replace("0", "1")) == PLAIN


def test_torchao_s_configs_per_module() -> None:
    per_module = {O_0: None, "re:.*down_proj": {"_type": "Int4WeightOnlyConfig", "_data": {}},
                  "_default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}
    trace = ask(ao("ModuleFqnToConfig", {"module_fqn_to_config": per_module}), **ON).trace
    why = {x.path: x.why for x in trace.layers}
    assert of(trace, O_0) == PLAIN
    assert str(why[QKV]).startswith("torchao Int8WeightOnlyConfig:")
    assert str(why["model.layers.1.mlp.down_proj"]).startswith("torchao Int4WeightOnlyConfig:")


def test_torchao_s_fp8_activations_need_8_9() -> None:
    kind, message, layer = refused(ao("Float8DynamicActivationFloat8WeightConfig"), "8.6", **ON)
    assert (kind, layer) == ("ValueError", QKV)
    assert "requires GPU compute capability >= 8.9" in message
    assert "(current GPU compute capability: 8.6)" in message


@pytest.mark.parametrize(("types", "message"), [
    (None, "quant_type must be specified"),
    ({"default": {}, "x": {}}, "Expected only one key 'default' in quant_type dictionary"),
])
def test_torchao_configs_that_are_refused(types: Any, message: str) -> None:
    quant = {"quant_method": "torchao", **({"quant_type": types} if types else {})}
    assert refused(quant, **ON) == ("ValidationError", message, None)


@pytest.mark.parametrize("method", ["mxfp4", "gpt_oss_mxfp4"])
def test_the_transformers_backend_has_no_mxfp4(method: str) -> None:
    arcee = {**LLAMA, "architectures": ["ArceeForCausalLM"], "model_type": "arcee",
             "hidden_act": "relu2"}
    assert refused({"quant_method": method}, model=arcee) == (
        "NotImplementedError",
        "Transformers modeling backend does not support MXFP4 quantization yet.", None)
    assert ask({"quant_method": "experts_int8"}, model=arcee).trace.error is None
