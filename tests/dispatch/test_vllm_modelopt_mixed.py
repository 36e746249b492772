"""MIXED_PRECISION: one algorithm per layer, and packed blocks. The answers are those of the
engine's own code."""

from __future__ import annotations

from typing import Any

import pytest

from quantplan import explain

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False}
ATTENTION = [f"model.layers.{i}.self_attn.{x}_proj" for i in (0, 1) for x in "qkvo"]
MLP = [f"model.layers.{i}.mlp.{x}_proj" for i in (0, 1) for x in ("gate", "up", "down")]
LAYERS = {**{path: {"quant_algo": "FP8"} for path in ATTENTION},
          **{path: {"quant_algo": "NVFP4", "group_size": 16} for path in MLP}}
Q = "model.layers.0.self_attn.q_proj"
HOPPER = {"FP8": "CutlassFP8ScaledMMLinearKernel", "NVFP4": "HummingNvFp4LinearKernel",
          "W4A16_NVFP4": "HummingNvFp4LinearKernel", None: None}


def mixed(layers: Any = LAYERS, **fields: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": [],
            "quantized_layers": layers, **fields}


def side(layers: Any = LAYERS, producer: str = "modelopt", **fields: Any) -> dict[str, Any]:
    return {"hf_quant_config.json": {"producer": {"name": producer}, "quantization": {
        "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, **fields}}}


def ask(config: Any, capability: int = 90, **options: Any) -> dict[str, Any]:
    whole = {**LLAMA, "quantization_config": config}
    return explain(whole, capability=capability, **options).to_dict()


def kernels(found: dict[str, Any], name: str) -> dict[int, str | None]:
    rows = [row for row in found["layers"] if row["path"].endswith(name)]
    return {index: row["kernel"] for row in rows for index in row["indices"] or [-1]}


def error(found: dict[str, Any]) -> tuple[str, str, str | None]:
    assert found["error"] is not None, found["outcome"]
    return found["error"]["type"], found["error"]["message"], found["error"]["layer"]


@pytest.mark.parametrize("layers, name, algos", [
    (LAYERS, "qkv_proj", {0: "FP8", 1: "FP8"}), (LAYERS, "down_proj", {0: "NVFP4", 1: "NVFP4"}),
    (LAYERS, "lm_head", {-1: None}),
    ({**LAYERS, "lm_head": {"quant_algo": "W4A16_NVFP4"}}, "lm_head", {-1: "W4A16_NVFP4"}),
    ({Q: {"quant_algo": "fp8"}}, "qkv_proj", {0: "FP8", 1: None}),
    ({Q: {"quant_algo": "FP8"}}, "o_proj", {0: None, 1: None}),
    ({"model.layers.0.self_attn.qkv_proj": {"quant_algo": "FP8"}}, "qkv_proj", {0: "FP8", 1: None}),
    ({"model.layers.1.mlp.down_proj.x.y": {"quant_algo": "NVFP4"}}, "down_proj",
     {0: None, 1: "NVFP4"}),
    ({path: {"quant_algo": "FP8_BLOCK_SCALES"} for path in MLP}, "down_proj", {0: None, 1: None}),
    ({path: {"quant_algo": "INT4_AWQ"} for path in MLP}, "down_proj", {0: None, 1: None})])
def test_which_algorithm_a_layer_has(
    layers: dict[str, Any], name: str, algos: dict[int, str | None]
) -> None:
    """Its own entry, that of its parts, or the first one below it; no entry: 16 bits."""
    found = ask(mixed(layers))
    assert found["method"]["config_class"] == "ModelOptMixedPrecisionConfig"
    assert kernels(found, name) == {index: HOPPER[algo] for index, algo in algos.items()}


def test_parts_that_disagree_are_refused() -> None:
    assert error(ask(mixed({**LAYERS, Q: {"quant_algo": "NVFP4"}}))) == (
        "ValueError", "Mixed quant_algo within fused layer model.layers.0.self_attn.qkv_proj: "
        "{'FP8', 'NVFP4'}. All shards must use the same quantization.",
        "model.layers.0.self_attn.qkv_proj")


def test_excluded_modules_win() -> None:
    found = ask(mixed(ignore=["model.layers.1*"]))
    assert kernels(found, "qkv_proj") == {0: HOPPER["FP8"], 1: None}


@pytest.mark.parametrize("config, files, message", [
    (mixed({}), None, "MIXED_PRECISION quant_algo requires a non-empty 'quantized_layers' mapping "
     "in the quantization config."),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, None,
     "Cannot find the config file for modelopt_mixed"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, side(producer="other"),
     "Unsupported quantization config found for modelopt_mixed in <_io.TextIOWrapper "
     "name='<model>/hf_quant_config.json' mode='r' encoding='UTF-8'>."),
    (mixed({**LAYERS, "a": {"quant_algo": "FP8_PB_WO", "group_size": 128},
            "b": {"quant_algo": "FP8_BLOCK_SCALES", "group_size": 64}}), None,
     "MIXED_PRECISION currently requires all block-FP8 MoE layers to use one group_size, got "
     "[64, 128]."),
    (mixed({"a": {"quant_algo": "iq2_xs", "group_size": 128}}), None,
     "unsupported IQ2_XS block contract for a: {'quant_algo': 'iq2_xs', 'group_size': 128}")])
def test_configs_that_are_refused(config: Any, files: Any, message: str) -> None:
    assert error(ask(config, side_files=files)) == ("ValidationError", message, None)


def test_layers_of_the_side_file_serve_a_config_without_them() -> None:
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    found = ask(config, side_files=side(exclude_modules=["*mlp*"], kv_cache_quant_algo="FP8"))
    assert kernels(found, "qkv_proj") == {0: HOPPER["FP8"], 1: HOPPER["FP8"]}
    assert kernels(found, "down_proj") == {0: None, 1: None}


@pytest.mark.parametrize("scheme, method, dtype", [
    (None, None, "auto"),
    ({"dynamic": False, "num_bits": 8, "type": "float"}, "ModelOptKVCacheMethod", "fp8_e4m3")])
def test_the_kv_method_comes_with_a_kv_algorithm(
    scheme: Any, method: str | None, dtype: str
) -> None:
    found = ask(mixed(kv_cache_scheme=scheme))
    row = next(row for row in found["layers"] if row["module"] == "Attention")
    assert (row["method"], row["kv_cache_dtype"]) == (method, dtype)


BLOCKS = {path: {"quant_algo": "Q8_0", "group_size": 32, "block_payload_bytes": 34,
                 "packing": "ggml"} for path in ATTENTION}
B12X = {"b12x": True}


@pytest.mark.parametrize("options, message", [
    ({}, "Block-quantized dense weights require b12x on SM12x"),
    ({"libs": B12X, "capability": 100}, "Block-quantized dense weights require b12x on SM12x"),
    ({"libs": B12X, "linear_backend": "marlin"},
     "Block-quantized dense weights require the b12x linear backend"),
    ({"libs": B12X, "linear_backend_per_quant": {"q8_0": "marlin"}},
     "Block-quantized dense weights require the b12x linear backend"),
    ({"libs": B12X, "dtype": "float16"}, "Q8_0 dense weights require BF16, K32 and N8")])
def test_what_packed_blocks_ask(options: dict[str, Any], message: str) -> None:
    asked = {"capability": 120, **options}
    assert error(ask(mixed(BLOCKS), **asked))[:2] == ("ValueError", message)


def test_packed_blocks_have_a_method_of_their_own() -> None:
    found = ask(mixed(BLOCKS), 120, libs=B12X, linear_backend_per_quant={"q8_0": "b12x"},
                linear_backend="cutlass")
    methods = {row["path"].rsplit(".", 1)[-1]: row["method"] for row in found["layers"]}
    assert methods["qkv_proj"] == "ModelOptBlockQuantLinearMethod"
    assert methods["down_proj"] == "UnquantizedLinearMethod"
