"""The formats table: what it says of each format against what its own config is read as, and
against the configs of the engine's golden cases."""

from __future__ import annotations

import copy
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from quantplan.dispatch.bundled import bundled_checkpoint
from quantplan.dispatch.facts import Checkpoint, Tensor
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import HYPOTHETICAL, as_format, find_format, what_if_formats
from quantplan.dispatch.safetensors_header import DTYPES
from quantplan.dispatch.weight_format import WeightFormat, layout_row, read_format
from quantplan.tables.errors import CheckpointError, NotKnownError, TableError, UsageError
from quantplan.tables.format_rows import FORMAT_DOCUMENT
from quantplan.tables.load import read_table
from quantplan.tables.schema import check

TABLE = read_table("formats/formats")
FORMATS = {row["id"]: row for row in TABLE["formats"]}
QUANTIZED = [row for row in TABLE["formats"] if "config" in row]
GOLDEN = Path(__file__).parent.parent / "golden" / "vllm-0.32.0.jsonl.gz"

# Format -> quantization named in the ids of the golden cases.
GOLDEN_NAMES = {
    "fp8": "fp8-static", "fp8-dynamic": "fp8-dynamic", "fp8-block": "fp8-block128",
    "ct-fp8-dynamic": "ct-fp8-dynamic", "ct-fp8-static": "ct-fp8-static",
    "ct-fp8-block": "ct-fp8-block", "awq": "awq4-g128", "gptq": "gptq4-g128",
    "gptq-8bit": "gptq8-g128", "w4a16": "ct-w4a16", "w8a16": "ct-w8a16", "w4a8-fp8": "ct-w4a8-fp8",
    "w4a8-int8": "ct-w4a8-int8", "w8a8-int8": "ct-w8a8-int8", "nvfp4": "ct-nvfp4",
    "nvfp4a16": "ct-nvfp4a16", "mxfp4": "ct-mxfp4", "mxfp8": "ct-mxfp8",
    "modelopt-fp8": "modelopt-fp8", "modelopt-fp8-pcpt": "modelopt-fp8-pcpt",
    "modelopt-fp8-block": "modelopt-fp8-pbwo", "modelopt-nvfp4": "modelopt-nvfp4",
    "modelopt-mxfp8": "modelopt-mxfp8",
}

NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
         "group_size": 16, "dynamic": False, "block_structure": None, "actorder": None,
         "observer": "minmax", "observer_kwargs": {}}
MODELOPT_NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
# Configs of the cases that the engine was asked and that the golden file does not hold.
ASKED: dict[str, Any] = {
    **{name: {"quant_method": "compressed-tensors", "quantization_status": "compressed",
              "format": "nvfp4-pack-quantized", "ignore": ["lm_head"], "kv_cache_scheme": None,
              "config_groups": {"group_0": {
                  "targets": ["Linear"], "format": None, "weights": NVFP4,
                  "input_activations": inputs, "output_activations": None}}}
       for name, inputs in (("ct-nvfp4", {**NVFP4, "dynamic": "local"}), ("ct-nvfp4a16", None))},
    "ct-w4a8-int8": {
        "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "format": "pack-quantized", "ignore": ["lm_head"], "kv_cache_scheme": None,
        "config_groups": {"group_0": {
            "targets": ["Linear"], "format": None, "output_activations": None,
            "weights": {**NVFP4, "type": "int", "strategy": "group", "group_size": 128},
            "input_activations": {**NVFP4, "type": "int", "num_bits": 8, "strategy": "token",
                                  "group_size": None, "dynamic": True}}}},
    "modelopt-nvfp4": {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.30"}, "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": MODELOPT_NVFP4,
            "input_activations": MODELOPT_NVFP4}}},
    "modelopt-fp8": {
        "quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"],
        "kv_cache_scheme": None, "producer": {"name": "modelopt", "version": "0.30"}},
    **{name: {"quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"],
              "producer": {"name": "modelopt", "version": "0.40"}}
       for name, algo in (("modelopt-fp8-pcpt", "FP8_PER_CHANNEL_PER_TOKEN"),
                          ("modelopt-fp8-pbwo", "FP8_PB_WO"), ("modelopt-mxfp8", "MXFP8"))},
}

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}


@cache
def golden_configs() -> dict[str, Any]:
    """Return {quantization: quantization_config} of the golden Llama-3.1-8B cases."""
    found: dict[str, Any] = dict(ASKED)
    with gzip.open(GOLDEN, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            model, quantization, *_ = row["id"].split("/")
            if model == "llama8b":
                found.setdefault(quantization, row["case"]["config"].get("quantization_config"))
    return found


def llama(**changes: Any) -> Checkpoint:
    """Return Llama-3.1-8B as a config alone."""
    return Checkpoint("llama-3.1-8b", "mapping", {**LLAMA, **changes})


def test_the_table_follows_its_schema() -> None:
    check(TABLE, FORMAT_DOCUMENT, "tables/formats/formats.yaml")
    broken = copy.deepcopy(TABLE)
    broken["formats"][0]["covers"] = "everything"
    with pytest.raises(TableError, match="covers"):
        check(broken, FORMAT_DOCUMENT, "formats")


def test_names_are_unique_and_kebab() -> None:
    names = [name for row in TABLE["formats"] for name in (row["id"], *row["aliases"])]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and "_" not in name and " " not in name for name in names)


def test_dtypes_are_those_of_safetensors() -> None:
    assert set(TABLE["dtype_bits"]) == DTYPES
    used = {row.get(field) for layout in TABLE["layouts"] for row in layout["tensors"]
            for field in ("dtype", "engine")}
    assert used <= {*TABLE["dtype_bits"], "model", "none", None}


def test_dims_are_of_the_closed_vocabulary() -> None:
    dims = {dim for layout in TABLE["layouts"] for row in layout["tensors"] for dim in row["dims"]}
    assert dims <= {"n", "k", "groups", "n_blocks", "k_blocks", "1", "2"}


def test_the_what_if_formats_are_those_of_the_budget() -> None:
    assert [row["title"] for row in what_if_formats()] == [
        "bf16", "fp8 per-tensor", "fp8 block 128x128", "int4 g128 sym", "int4 g128 asym"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_config_is_the_golden_cases_config(name: str) -> None:
    assert FORMATS[name]["config"] == golden_configs()[GOLDEN_NAMES[name]]


def test_every_quantized_format_has_a_golden_case() -> None:
    assert {row["id"] for row in QUANTIZED} == set(GOLDEN_NAMES)


@pytest.mark.parametrize("row", QUANTIZED, ids=lambda row: row["id"])
def test_a_row_says_what_its_config_is_read_as(row: dict[str, Any]) -> None:
    found = read_format({"quantization_config": row["config"]})
    assert found is not None
    scale = row["scale"]
    assert (found.layout, found.bits, found.title) == (
        row["layout"], row["weight_bits"], row["title"])
    assert (list(found.block) if found.block else None) == scale.get("block")
    assert (found.group if found.group > 0 else None) == scale.get("group")
    assert found.symmetric is not row["zero_points"]
    static = "static_activation" in found.features
    assert static == (row["activation_scale"] == "static")
    stored = found.row({"awq": "scales", "gptq": "scales", "fp8-block": "weight_scale_inv"}.get(
        row["layout"], "weight_scale"))
    assert stored is not None
    assert stored.get("engine", stored["dtype"]) == scale["dtype"]
    assert layout_row(row["layout"])["quant_method"] == row["config"]["quant_method"]


@pytest.mark.parametrize("name, wanted", [
    ("fp8", "fp8"), ("FP8_STATIC", "fp8"), ("fp8-static", "fp8"), (" bfloat16 ", "bf16"),
    ("ct-w4a16", "w4a16"), ("awq-4bit", "awq"),
])
def test_a_format_is_found_by_id_and_alias(name: str, wanted: str) -> None:
    assert find_format(name)["id"] == wanted


def test_an_unknown_format_names_the_closest() -> None:
    with pytest.raises(UsageError, match=r"unknown weight format 'w4a61'.*Did you mean w4a16"):
        find_format("w4a61")
    with pytest.raises(UsageError, match="wanted one of bf16, fp16, fp8"):
        find_format("")


# Tensor -> (dtype, shape) of model.layers.31.mlp.down_proj (n 4096, k 14336), from the files of
# the tools that each row cites.
DOWN_PROJ: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "bf16": {"weight": ("BF16", (4096, 14336))},
    "fp16": {"weight": ("F16", (4096, 14336))},
    "fp8": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("F32", ()),
            "input_scale": ("F32", ())},
    "fp8-dynamic": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("F32", ())},
    "fp8-block": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale_inv": ("F32", (32, 112))},
    "ct-fp8-dynamic": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("BF16", (4096, 1))},
    "ct-fp8-static": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("BF16", (1,)),
                      "input_scale": ("BF16", (1,))},
    "ct-fp8-block": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("BF16", (32, 112))},
    "awq": {"qweight": ("I32", (14336, 512)), "qzeros": ("I32", (112, 512)),
            "scales": ("F16", (112, 4096))},
    "gptq": {"qweight": ("I32", (1792, 4096)), "qzeros": ("I32", (112, 512)),
             "scales": ("F16", (112, 4096)), "g_idx": ("I32", (14336,))},
    "gptq-8bit": {"qweight": ("I32", (3584, 4096)), "qzeros": ("I32", (112, 1024)),
                  "scales": ("F16", (112, 4096)), "g_idx": ("I32", (14336,))},
    "w4a16": {"weight_packed": ("I32", (4096, 1792)), "weight_scale": ("BF16", (4096, 112)),
              "weight_shape": ("I64", (2,))},
    "w8a16": {"weight_packed": ("I32", (4096, 3584)), "weight_scale": ("BF16", (4096, 1)),
              "weight_shape": ("I64", (2,))},
    "w4a8-fp8": {"weight_packed": ("I32", (4096, 1792)), "weight_scale": ("BF16", (4096, 112)),
                 "weight_shape": ("I64", (2,))},
    "w4a8-int8": {"weight_packed": ("I32", (4096, 1792)), "weight_scale": ("BF16", (4096, 112)),
                  "weight_shape": ("I64", (2,))},
    "w8a8-int8": {"weight": ("I8", (4096, 14336)), "weight_scale": ("BF16", (4096, 1))},
    "nvfp4": {"weight_packed": ("U8", (4096, 7168)), "weight_scale": ("F8_E4M3", (4096, 896)),
              "weight_global_scale": ("F32", (1,)), "input_global_scale": ("F32", (1,))},
    "nvfp4a16": {"weight_packed": ("U8", (4096, 7168)), "weight_scale": ("F8_E4M3", (4096, 896)),
                 "weight_global_scale": ("F32", (1,))},
    "mxfp4": {"weight_packed": ("U8", (4096, 7168)), "weight_scale": ("U8", (4096, 448))},
    "mxfp8": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("U8", (4096, 448))},
    "modelopt-fp8": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("F32", ()),
                     "input_scale": ("F32", ())},
    "modelopt-fp8-pcpt": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("F32", (4096,))},
    "modelopt-fp8-block": {"weight": ("F8_E4M3", (4096, 14336)),
                           "weight_scale": ("F32", (32, 1, 112, 1))},
    "modelopt-nvfp4": {"weight": ("U8", (4096, 7168)), "weight_scale": ("F8_E4M3", (4096, 896)),
                       "weight_scale_2": ("F32", ()), "input_scale": ("F32", ())},
    "modelopt-mxfp8": {"weight": ("F8_E4M3", (4096, 14336)), "weight_scale": ("U8", (4096, 448))},
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_hypothetical_checkpoint_has_the_tools_tensors(name: str) -> None:
    made = as_format(llama(), name)
    assert made.tensors is not None
    prefix = "model.layers.31.mlp.down_proj."
    found = {key.removeprefix(prefix): made.tensors[key] for key in made.tensors
             if key.startswith(prefix)}
    assert found == {key: Tensor(*value) for key, value in DOWN_PROJ[name].items()}
    plain = "F16" if name == "fp16" else "BF16"
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        assert made.tensors[key] == Tensor(plain, (128256, 4096))
    assert made.tensors["model.layers.0.input_layernorm.weight"] == Tensor(plain, (4096,))


def test_a_hypothetical_checkpoint_says_what_it_is() -> None:
    made = as_format(llama(), "awq")
    assert made.name == "llama-3.1-8b as awq"
    assert made.origin == HYPOTHETICAL
    assert made.config["quantization_config"] == FORMATS["awq"]["config"]
    assert made.config["quantization_config"] is not FORMATS["awq"]["config"]
    assert made.file_bytes is None


def test_an_old_quantization_is_replaced_with_its_side_files() -> None:
    old = Checkpoint("m", "folder", {**LLAMA, "quantization_config": FORMATS["gptq"]["config"]},
                     side_files={"quantize_config.json": {}, "generation_config.json": {}},
                     tensors={"model.norm.weight": Tensor("BF16", (4096,))}, file_bytes=1)
    plain = as_format(old, "bf16")
    assert "quantization_config" not in plain.config
    assert list(plain.side_files) == ["generation_config.json"]
    assert plain.tensors is not None and "model.layers.0.mlp.up_proj.weight" in plain.tensors


def test_16_bit_formats_set_the_dtype() -> None:
    assert as_format(llama(), "fp16").config["torch_dtype"] == "float16"
    assert as_format(llama(dtype="bfloat16"), "fp16").config["dtype"] == "float16"


def test_a_tied_lm_head_is_not_stored() -> None:
    made = as_format(llama(tie_word_embeddings=True), "fp8")
    assert made.tensors is not None and "lm_head.weight" not in made.tensors


def test_an_unknown_family_has_no_tensors() -> None:
    assert as_format(llama(architectures=["BambooForCausalLM"]), "fp8").tensors is None


def test_an_incomplete_family_has_no_tensors_and_its_routers_are_left() -> None:
    """llm-compressor's and FineGrainedFP8's recipes for experts leave the routers."""
    routers = [f"model.layers.{layer}.mlp.gate" for layer in range(48)]
    model = bundled_checkpoint("qwen3-30b-a3b")
    assert model is not None
    made = {name: as_format(model, name) for name in ("fp8", "w4a16", "awq")}
    sections = {name: one.config["quantization_config"] for name, one in made.items()}
    assert [one.tensors for one in made.values()] == [None, None, None]
    assert sections["fp8"]["modules_to_not_convert"] == routers
    assert sections["w4a16"]["ignore"] == ["lm_head", *routers]
    assert sections["awq"] == FORMATS["awq"]["config"]


def test_biases_stay_in_16_bits() -> None:
    qwen = llama(architectures=["Qwen2ForCausalLM"], model_type="qwen2")
    made = as_format(qwen, "w8a8-int8")
    assert made.tensors is not None
    assert made.tensors["model.layers.0.self_attn.k_proj.bias"] == Tensor("BF16", (1024,))
    assert model_structure(qwen).family == "qwen2"


# Golden quantizations of Llama-3.1-8B -> what is read from their fields.
READ = {
    "none": None,
    "fp8-ignore-lm": WeightFormat("fp8-tensor", 8, features=frozenset(["static_activation"]),
                                  ignored=("lm_head", "model.layers.0.mlp.down_proj")),
    "fp8-mtnc": WeightFormat("fp8-tensor", 8, ignored=(
        "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", "lm_head")),
    "awq4-g64": WeightFormat("awq", 4, 64),
    "awq4-nozp": WeightFormat("awq", 4, 128, symmetric=True),
    "awq4-lmhead": WeightFormat("awq", 4, 128, lm_head=True),
    "awq8": WeightFormat("awq", 8, 128),
    "gptq4-g32": WeightFormat("gptq", 4, 32),
    "gptq4-gchan": WeightFormat("gptq", 4, -1),
    "gptq4-asym": WeightFormat("gptq", 4, 128, symmetric=False),
    "gptq2": WeightFormat("gptq", 2, 128),
    "ct-fp8-w8a16": WeightFormat("ct-fp8-channel", 8),
    "ct-w4a16-chan": WeightFormat("ct-pack", 4, -1),
    "ct-w4a16-asym": WeightFormat("ct-pack", 4, 128, features=frozenset(["zero_points"]),
                                  symmetric=False),
    "ct-w4a16-actorder": WeightFormat("ct-pack", 4, 128, features=frozenset(["activation_order"])),
    "ct-w4a16-actweight": WeightFormat("ct-pack", 4, 128),
    "ct-w8a8-int8-static": WeightFormat("ct-int8-tensor", 8,
                                        features=frozenset(["static_activation"])),
    "ct-ignore-re": WeightFormat("ct-fp8-channel", 8, ignored=("re:.*self_attn.*",)),
}


@pytest.mark.parametrize("quantization", READ)
def test_formats_are_read_by_their_fields(quantization: str) -> None:
    wanted = READ[quantization]
    if wanted is not None and wanted.layout == "awq" and quantization != "awq4-nozp":
        wanted = wanted._replace(symmetric=False)
    assert read_format({"quantization_config": golden_configs()[quantization]}) == wanted


@pytest.mark.parametrize("quantization, named", [
    ("gptq3", "gptq with 3 bits"), ("gptq4-dynamic", "dynamic rules"),
    ("gptq4-marlinfmt", "format marlin"), ("ct-mixed", "targets"), ("ct-nofmt", "targets"),
    ("bnb-nf4", "quant_method bitsandbytes"),
    ("unknown", "quant_method made_up_quant"), ("nomethod", "quant_method absent"),
])
def test_a_format_without_a_layout_is_named(quantization: str, named: str) -> None:
    with pytest.raises(NotKnownError, match=named):
        read_format({"quantization_config": golden_configs()[quantization]})


@pytest.mark.parametrize("config, wanted", [
    ({"quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.0*"]}, WeightFormat(
        "modelopt-nvfp4", 4, 16, features=frozenset(["static_activation"]),
        ignored=("model.layers.0*",))),
    ({"quant_algo": "w4a16_nvfp4"}, WeightFormat("modelopt-nvfp4", 4, 16, lm_head=True)),
    ({"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "FP8", "exclude_modules": ["*lm_head"]}}, WeightFormat(
            "modelopt-fp8", 8, features=frozenset(["static_activation"]), ignored=("*lm_head",))),
    ({"quant_algo": "NVFP4", "config_groups": {"group_0": {"input_activations": None}}},
     WeightFormat("modelopt-nvfp4", 4, 16, lm_head=True))])
def test_modelopt_is_read_in_both_forms(config: dict[str, Any], wanted: WeightFormat) -> None:
    assert read_format({"quantization_config": {"quant_method": "modelopt", **config}}) == wanted


@pytest.mark.parametrize("algo", ["MIXED_PRECISION", "INT4_AWQ", ""])
def test_a_modelopt_algorithm_without_a_layout_is_named(algo: str) -> None:
    with pytest.raises(NotKnownError, match=f"quant_algo {algo or 'absent'}; wanted FP8"):
        read_format({"quantization_config": {"quant_method": "modelopt", "quant_algo": algo}})


@pytest.mark.parametrize("section, wanted", [
    ({}, WeightFormat("gptq", 4, 128)),
    ({"packing_format": "auto_round:auto_awq", "sym": False},
     WeightFormat("awq", 4, 128, symmetric=False)),
    ({"packing_format": "auto_round:auto_awq", "backend": "gptq"}, WeightFormat("gptq", 4, 128)),
    ({"extra_config": {"lm_head": {"bits": 4}, ".*visual.*": {"bits": 16}}},
     WeightFormat("gptq", 4, 128, lm_head=True, ignored=(".*visual.*",))),
    ({"extra_config": {"model.layers.0.mlp.up_proj": {"bits": 8}}}, None),
    ({"data_type": "mx_fp", "group_size": 32}, None),
])
def test_auto_round_packs_as_gptq_or_awq_do(
    section: dict[str, Any], wanted: WeightFormat | None
) -> None:
    """vLLM 0.32.0 quantization/inc/config_parser.py:INCLayerConfig: the name of the packing or of
    the backend decides, gptq before awq; lm_head is quantized only where a rule says so."""
    config = {"quantization_config": {"quant_method": "auto-round", "bits": 4, "group_size": 128,
                                      **section}}
    if wanted is None:
        with pytest.raises(NotKnownError, match="auto-round"):
            read_format(config)
    else:
        assert read_format(config) == wanted


@pytest.mark.parametrize("method", ["quark", "torchao"])
def test_a_method_without_a_layout_is_named(method: str) -> None:
    with pytest.raises(NotKnownError, match=f"quant_method {method}; wanted fp8, awq, gptq"):
        read_format({"quantization_config": {"quant_method": method}})


@pytest.mark.parametrize("section, named", [
    ("fp8", "quantization_config; wanted an object"),
    ({"quant_method": "fp8"}, "activation_scheme"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight block"),
    ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight block"),
    ({"quant_method": "awq", "bits": "4"}, "bits; wanted an integer"),
    ({"quant_method": "awq", "bits": 4, "group_size": 0}, "group_size"),
    ({"quant_method": "gptq", "bits": 4}, "group_size; wanted an integer; found nothing"),
    ({"quant_method": "compressed-tensors"}, "config_groups"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": 1}}, "config_groups"),
])
def test_a_bad_section_is_refused(section: Any, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read_format({"quantization_config": section})
