"""ModelOpt checkpoints: names, config forms, errors, excluded modules, algorithms, KV cache. The
answers are those of the engine's own code."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import explain

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False}
ODD = {**LLAMA, "hidden_size": 4112, "num_attention_heads": 16, "num_key_value_heads": 4,
       "head_dim": 128, "intermediate_size": 6840}
PRODUCER = {"name": "modelopt", "version": "0.39"}


def flat(algo: str = "FP8", **fields: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algo, "producer": PRODUCER,
            "ignore": ["lm_head"], **fields}


def nested(algo: str = "FP8", **fields: Any) -> dict[str, Any]:
    return {"producer": PRODUCER, "quantization": {
        "quant_algo": algo, "kv_cache_quant_algo": None, "group_size": 16,
        "exclude_modules": ["lm_head"], **fields}}


def ask(config: Any, capability: int = 90, model: Any = LLAMA, **options: Any) -> dict[str, Any]:
    whole = model if config is None else {**model, "quantization_config": config}
    return explain(whole, capability=capability, **options).to_dict()


def kernels(found: dict[str, Any], name: str = "qkv_proj") -> dict[int, str | None]:
    rows = [row for row in found["layers"] if row["path"].endswith(name)]
    return {index: row["kernel"] for row in rows for index in row["indices"] or [-1]}


def error(found: dict[str, Any]) -> tuple[str, str, str | None]:
    assert found["error"] is not None, found["outcome"]
    return found["error"]["type"], found["error"]["message"], found["error"]["layer"]


# Names.


@pytest.mark.parametrize("own", ["modelopt", "modelopt_fp4", "modelopt_foo", "ModelOpt"])
@pytest.mark.parametrize("algo, resolved", [
    ("FP8", "modelopt"), ("NVFP4", "modelopt_fp4"), ("W4A16_NVFP4", "modelopt_fp4"),
    ("MXFP8", "modelopt_mxfp8")])
@pytest.mark.parametrize("requested", [None, "awq", "fp8", "modelopt_mixed"])
def test_the_algorithm_names_the_method_whatever_is_asked(
    own: str, algo: str, resolved: str, requested: str | None
) -> None:
    """The hooks look at neither the whole quant_method nor --quantization."""
    found = ask(flat(algo, quant_method=own), quantization=requested)
    assert found["method"]["resolved"] == resolved


@pytest.mark.parametrize("algo", ["FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"])
def test_algorithms_without_a_hook_keep_the_name(algo: str) -> None:
    assert ask(flat(algo))["method"]["resolved"] == "modelopt"
    assert error(ask(flat(algo), quantization="modelopt_fp4")) == (
        "ValidationError", "Quantization method specified in the model config (modelopt) does not "
        "match the quantization method specified in the `quantization` argument (modelopt_fp4).",
        None)


@pytest.mark.parametrize("algo", ["W4A16_NVFP4", "MXFP8", "MIXED_PRECISION"])
@pytest.mark.parametrize("side", [True, False])
def test_the_producer_s_form_knows_four_algorithms(algo: str, side: bool) -> None:
    files = {"hf_quant_config.json": nested(algo)} if side else None
    found = ask(None if side else nested(algo), side_files=files)
    assert error(found) == ("ValidationError", f"Unknown ModelOpt quant algo: {algo}", None)


@pytest.mark.parametrize("config", [
    {"quant_algo": "FP8"}, {"producer": PRODUCER, "quant_algo": "FP8", "ignore": []},
    {"producer": {"name": "other"}, "quantization": {"quant_algo": "FP8"}},
    {"quantization": {"quant_algo": "NVFP4"}}])
def test_a_config_that_the_engine_does_not_read(config: dict[str, Any]) -> None:
    """No quant_method and no producer's section: everything is 16-bit, without an error here."""
    for found in (ask(config), ask(None, side_files={"hf_quant_config.json": config})):
        assert (found["outcome"], found["method"]["resolved"]) == ("ok", None)
        assert set(kernels(found).values()) == {None}
        assert found["starts"] == "no"
        assert "quantization-config-unread" in [f["id"] for f in found["findings"]]


def test_an_unread_config_over_16_bit_tensors_is_harmless() -> None:
    tensors = {"model.layers.0.self_attn.q_proj.weight": "BF16"}
    found = ask({"quant_algo": "FP8"}, tensors=tensors)
    assert "quantization-config-unread" not in [f["id"] for f in found["findings"]]


@pytest.mark.parametrize("own", ["mxfp8", "modelopt_mxfp8"])
def test_a_checkpoint_tagged_mxfp8(own: str) -> None:
    found = ask({"quant_method": own, "ignored_layers": ["lm_head"]}, 100)
    assert (found["method"]["resolved"], found["method"]["config_class"]) == (
        own, "ModelOptMxFp8Config")
    assert set(kernels(found).values()) == {"FlashInferCutedslMxfp8LinearKernel"}
    assert set(kernels(found, "lm_head").values()) == {None}


# What the constructor refuses.


UNKNOWN = ("ModelOpt currently only supports: ['FP8', 'FP8_PER_CHANNEL_PER_TOKEN', 'FP8_PB_WO', "
           "'NVFP4', 'W4A16_NVFP4', 'MXFP8', 'MIXED_PRECISION'] quantizations in vLLM. Please "
           "check the `hf_quant_config.json` file for your model's quant configuration.")


@pytest.mark.parametrize("config, message", [
    (flat(""), "Missing 'quant_algo' in quantization config"),
    ({"quant_method": "modelopt_fp4"}, "Missing 'quant_algo' in quantization config"),
    ({"quant_method": "modelopt", "quantization": {}},
     "Missing 'quant_algo' in quantization config"),
    (flat("INT4_AWQ"), UNKNOWN), (flat("MXFP4"), UNKNOWN),
    (flat("FP8_PB_WO", quant_method="modelopt_fp4"),
     "Unsupported ModelOpt NVFP4 quant_algo: FP8_PB_WO. Supported: NVFP4 / W4A16_NVFP4."),
    (flat("FP8_PB_WO", quant_method="modelopt_mxfp8"),
     "MXFP8 quantization requires a serialized checkpoint. Dynamic quantization is not supported."),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "group_size": 16}},
     "NVFP4 quantization requires the following fields in hf_quant_config.json: "
     "['kv_cache_quant_algo', 'exclude_modules']"),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "MXFP8"}},
     "MXFP8 quantization requires the following fields in hf_quant_config.json: "
     "['kv_cache_quant_algo', 'exclude_modules']"),
    (flat("NVFP4", group_size="x"), "group_size must be an integer, got <class 'str'>"),
    (flat("NVFP4", group_size=[16]), "group_size must be an integer, got <class 'list'>"),
    (flat(ignore=None), "exclude_modules must be a list, got <class 'NoneType'>"),
    (nested(exclude_modules="lm_head"), "exclude_modules must be a list, got <class 'str'>"),
    (nested(kv_cache_quant_algo=5), "kv_cache_quant_algo must be a string, got <class 'int'>"),
    (flat("FP8_PB_WO", quant_method="modelopt_mixed"),
     "Cannot find the config file for modelopt_mixed")])
def test_configs_that_are_refused(config: dict[str, Any], message: str) -> None:
    assert error(ask(config)) == ("ValidationError", message, None)


@pytest.mark.parametrize("name", ["modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"])
def test_a_16_bit_checkpoint_has_no_config_file(name: str) -> None:
    assert error(ask(None, quantization=name)) == (
        "ValidationError", f"Cannot find the config file for {name}", None)


# Excluded modules.


QKV = [f"model.layers.0.self_attn.{x}_proj" for x in "qkv"]


@pytest.mark.parametrize("excluded, left", [
    (QKV, {0}), (["model.layers.0.self_attn.qkv_proj"], {0}), (["*.qkv_proj"], {0, 1}),
    (["model.layers.0*"], {0}), (["model.layers.0.*"], {0}), (["model.layers.1*"], {1}),
    (["self_attn"], {0, 1}), (["proj"], {0, 1}), (["*"], {0, 1}), ([""], {0, 1}),
    (["model.layers.?.self_attn*"], {0, 1}), (["model.layers.?.self*"], set()),
    (["model.layers.0.self*"], {0}), (["*q_proj*"], set()), (["*[ab]*"], set()),
    (["LM_HEAD"], set()), (["re:.*self_attn.*"], set()), ([], set())])
@pytest.mark.parametrize("form", [flat, nested])
def test_which_layers_an_exclusion_takes(form: Any, excluded: list[str], left: set[int]) -> None:
    """A last * is cut off for a module and everything below it; a part of a path needs no *."""
    field = "ignore" if form is flat else "exclude_modules"
    found = kernels(ask(form("FP8", **{field: excluded})))
    assert {index for index, kernel in found.items() if kernel is None} == left


@pytest.mark.parametrize("architecture, model_type, left", [
    ("LlamaForCausalLM", "llama", set()), ("Glm4ForCausalLM", "glm4", {0, 1})])
def test_a_class_without_a_mapper_keeps_the_wildcard(
    architecture: str, model_type: str, left: set[int]
) -> None:
    """Glm4ForCausalLM has no hf_to_vllm_mapper: *.self_at* is matched as it stands."""
    model = {**LLAMA, "architectures": [architecture], "model_type": model_type, "head_dim": 128}
    found = kernels(ask(flat(ignore=["*.self_at*"]), model=model))
    assert {index for index, kernel in found.items() if kernel is None} == left


def test_one_leaf_of_a_fused_layer_is_refused() -> None:
    assert error(ask(flat(ignore=QKV[:1]))) == (
        "ValueError", "Detected some but not all shards of model.layers.0.self_attn.qkv_proj are "
        "quantized. All shards of fused layers to have the same precision.",
        "model.layers.0.self_attn.qkv_proj")


def test_a_wildcard_that_misses_the_fused_name_is_told() -> None:
    found = [f for f in ask(flat(ignore=["*q_proj*"]))["findings"]
             if f["id"] == "exclusion-misses-fused-layer"]
    assert [f["message"] for f in found] == [
        "'*q_proj' fits a part of qkv_proj but not that name, which the engine looks at: all of it "
        "stays quantized"]


@pytest.mark.parametrize("excluded, method", [
    (["lm_head"], "UnquantizedLinearMethod"), (["*lm_head"], "UnquantizedLinearMethod"),
    (["lm_head*"], "UnquantizedLinearMethod"), ([], "ModelOptLinearMethod")])
def test_lm_head_is_quantized_unless_it_is_excluded(excluded: list[str], method: str) -> None:
    found = next(row for row in ask(flat(ignore=excluded))["layers"] if row["path"] == "lm_head")
    assert found["method"] == method


def test_a_quantized_lm_head_on_the_embedding_s_weight_is_told() -> None:
    found = ask(flat(ignore=[]), model={**LLAMA, "tie_word_embeddings": True})
    assert (found["outcome"], found["starts"]) == ("ok", "no")
    assert "tied-lm-head-quantized" in [f["id"] for f in found["findings"]]


@pytest.mark.parametrize("version, method", [
    ("0.32.0", "ModelOptLinearMethod"), ("0.33.0", "UnquantizedLinearMethod")])
def test_exclude_modules_in_config_json(version: str, method: str) -> None:
    """0.32.0 reads ignore there only, 0.33.0 both."""
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    found = ask(config, engine_version=version)
    row = next(row for row in found["layers"] if row["path"] == "lm_head")
    assert row["method"] == method
    assert ("excluded-modules-unread" in [f["id"] for f in found["findings"]]) == (
        version == "0.32.0")


# Algorithms.


@pytest.mark.parametrize("algo, capability, kernel, mode", [
    ("FP8", 80, "MarlinFP8ScaledMMLinearKernel", "W8A16_fp8"),
    ("FP8", 90, "CutlassFP8ScaledMMLinearKernel", "W8A8_fp8"),
    ("FP8", 100, "FlashInferFP8ScaledMMLinearKernel", "W8A8_fp8"),
    ("FP8_PER_CHANNEL_PER_TOKEN", 100, "CutlassFP8ScaledMMLinearKernel", "W8A8_fp8"),
    ("FP8_PB_WO", 89, "MarlinFP8ScaledMMLinearKernel", "W8A16_fp8"),
    ("FP8_PB_WO", 100, "DeepGemmFp8BlockScaledMMKernel", "W8A8_fp8"),
    ("NVFP4", 80, "MarlinNvFp4LinearKernel", "W4A16_nvfp4"),
    ("NVFP4", 100, "FlashInferCuteDslNvFp4LinearKernel", "W4A4_nvfp4"),
    ("W4A16_NVFP4", 100, "FlashInferCuteDslNvFp4W4A16LinearKernel", "W4A16_nvfp4"),
    ("MXFP8", 90, "HummingMxfp8LinearKernel", "W8A16")])
def test_the_kernel_of_each_algorithm(algo: str, capability: int, kernel: str, mode: str) -> None:
    row = next(row for row in ask(flat(algo), capability)["layers"]
               if row["path"].endswith("qkv_proj"))
    assert (row["method"], row["kernel"], row["mode"]) == ("ModelOptLinearMethod", kernel, mode)


def test_nvfp4_without_activations_in_any_group_is_weight_only() -> None:
    groups = {"group_0": {"weights": {}, "targets": ["Linear"]}}
    found = ask(flat("NVFP4", config_groups=groups), 100)
    assert set(kernels(found).values()) == {"FlashInferCuteDslNvFp4W4A16LinearKernel"}


@pytest.mark.parametrize("algo, tp, message, layer", [
    ("FP8_PB_WO", 1, "FP8_PB_WO requires in divisible by 128, got 4112", "self_attn.qkv_proj"),
    ("MXFP8", 1, "MXFP8 requires input size divisible by 32, got 4112", "self_attn.qkv_proj"),
    ("NVFP4", 2, "Unsupported model when in features size is not multiple of 16", "mlp.down_proj"),
    ("W4A16_NVFP4", 2, "Unsupported model when in features size is not multiple of 16",
     "mlp.down_proj")])
def test_shapes_that_are_refused(algo: str, tp: int, message: str, layer: str) -> None:
    assert error(ask(flat(algo), 89, ODD, tp=tp)) == (
        "ValueError", message, f"model.layers.0.{layer}")


# KV cache.


FP8_KV = {"dynamic": False, "num_bits": 8, "type": "float"}


@pytest.mark.parametrize("config, dtype", [
    (flat(), "auto"), (flat(kv_cache_scheme=FP8_KV), "fp8_e4m3"),
    (flat(kv_cache_scheme={**FP8_KV, "dynamic": True}), "auto"),
    (flat(kv_cache_scheme={**FP8_KV, "type": "int"}), "auto"),
    (flat(kv_cache_scheme="fp8"), "fp8_e4m3"), (flat(kv_cache_quant_algo="FP8"), "fp8_e4m3"),
    (nested(kv_cache_quant_algo="fp8"), "fp8_e4m3"), (nested(kv_cache_quant_algo="INT8"), "auto"),
    (nested(kv_cache_quant_algo=""), "auto"), ({"quant_method": "mxfp8",
                                                "kv_cache_quant_algo": "FP8"}, "auto")])
def test_the_kv_cache_dtype_of_a_checkpoint(config: dict[str, Any], dtype: str) -> None:
    found = ask(config)
    row = next(row for row in found["layers"] if row["module"] == "Attention")
    assert (row["kv_cache_dtype"], row["method"]) == (dtype, "ModelOptKVCacheMethod")
    assert found["kv_cache"]["resolved"] == dtype


def test_the_kv_cache_dtype_that_is_asked_for_wins() -> None:
    found = ask(flat(kv_cache_scheme=FP8_KV), kv_cache_dtype="bfloat16")
    assert found["kv_cache"]["resolved"] == "bfloat16"
    assert error(ask(flat(), kv_cache_dtype="fp8_e5m2", capability=80))[:2] == (
        "ValueError", "fp8_e5m2 kv-cache is not supported with fp8 checkpoints.")
