"""Bundled models: names, parameter counts recomputed from the structure, published figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from quantplan.dispatch.bundled import bundled_checkpoint, bundled_models, closest_models
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.structure import Module, Structure

# As published for each repository, counting tied weights once and no rotary frequencies: the files
# of Qwen3-0.6B and 1.7B also store lm_head, those of Llama 2 the frequencies.
PUBLISHED_PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "codellama-7b": 6_738_546_688,
    "codellama-34b": 33_743_970_304,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}

ALL_IDS = [str(row["id"]) for row in bundled_models()]


def checkpoint_of(name: str) -> Checkpoint:
    """Return the bundled checkpoint NAME, which must exist."""
    checkpoint = bundled_checkpoint(name)
    assert checkpoint is not None
    return checkpoint


def structure_of(name: str) -> Structure:
    """Return the structure of the bundled model NAME."""
    return model_structure(checkpoint_of(name))


def parameters_count(structure: Structure) -> int:
    """Return the weights and biases of all modules, a tied lm_head counted once."""
    return sum(
        _module_count(module) * (len(module.layers) if module.per_layer else 1)
        for module in structure.modules
        if not (structure.tied and module.path == "lm_head")
    )


def _module_count(module: Module) -> int:
    if module.kind == "experts":
        facts = module.facts
        matrices = 3 if facts["gated"] else 2
        return int(facts["experts"] * facts["hidden"] * facts["intermediate"] * matrices)
    return sum(leaf.n * (leaf.k or 1) + (leaf.n if module.bias else 0) for leaf in module.leaves)


@pytest.mark.parametrize("row", bundled_models(), ids=ALL_IDS)
def test_table_count_follows_from_the_structure(row: Mapping[str, Any]) -> None:
    """Norms and vectors of an incomplete family's layers are up to 0.04 % of its weights."""
    structure = structure_of(row["id"])
    missing = row["parameters_count"] - parameters_count(structure)
    assert missing == 0 if structure.complete else 0 < missing < row["parameters_count"] / 2500


@pytest.mark.parametrize(("name", "count"), PUBLISHED_PARAMETERS.items(),
                         ids=list(PUBLISHED_PARAMETERS))
def test_structure_has_the_published_count(name: str, count: int) -> None:
    assert parameters_count(structure_of(name)) == count


@pytest.mark.parametrize("row", bundled_models(), ids=ALL_IDS)
def test_every_name_means_its_row(row: Mapping[str, Any]) -> None:
    for name in (row["id"], row["id"].upper(), *row["aliases"]):
        assert bundled_checkpoint(name) == Checkpoint(row["id"], "bundled", row["config"])


@pytest.mark.parametrize(("alias", "model_id"), [
    ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
    ("llama3.1-8B", "llama-3.1-8b"),
    ("Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"),
    ("qwen2.5-7b-awq", "qwen2.5-7b-instruct-awq"),
])
def test_alias_in_any_case(alias: str, model_id: str) -> None:
    assert checkpoint_of(alias).name == model_id


@pytest.mark.parametrize("name", [
    "meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", "./llama-3.1-8b", "llama-3.1-8b/",
    "", "llama-3.1-9b",
])
def test_hub_ids_paths_and_strangers_are_not_captured(name: str) -> None:
    assert bundled_checkpoint(name) is None


@pytest.mark.parametrize(("name", "closest"), [
    ("llama-3.1-8", "llama-3.1-8b"),
    ("Llama_3.1_70B", "llama-3.1-70b"),
    ("mistralai/Mistral-7B-v0.2", "mistral-7b-v0.3"),
    ("qwen2.5-7b-instruct-wq", "qwen2.5-7b-instruct-awq"),
])
def test_closest_model_comes_first(name: str, closest: str) -> None:
    found = closest_models(name)
    assert found[0] == closest
    assert len(found) == len(set(found)) <= 3


def test_nothing_is_close_to_another_word() -> None:
    assert closest_models("tokenizer.json") == []


def test_checkpoint_says_only_what_the_table_knows() -> None:
    checkpoint = checkpoint_of("qwen3-8b")
    assert checkpoint.tensors is None
    assert checkpoint.file_bytes is None
    assert checkpoint.revision is None
    assert checkpoint.fetched_bytes == 0


def test_a_callers_change_stays_with_the_caller() -> None:
    first = dict(checkpoint_of("qwen3-8b").config)
    checkpoint_of("qwen3-8b").config["hidden_size"] = 1  # type: ignore[index]
    assert checkpoint_of("qwen3-8b").config == first


def test_facts_rebuild_the_published_file() -> None:
    """config.json of Qwen/Qwen2.5-7B-Instruct-AWQ at b250375 has this SHA-256."""
    other_keys = {
        "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
        "initializer_range": 0.02, "max_window_layers": 28, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "transformers_version": "4.41.1", "use_cache": True,
    }
    facts = checkpoint_of("qwen2.5-7b-instruct-awq").config
    text = json.dumps({**facts, **other_keys}, indent=2, sort_keys=True) + "\n"
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "ec0c1f5f875ad8bc1f78c5140c22dbdde1b55478442ad358e7a4d9ecf947a327")


@pytest.mark.parametrize(("name", "quantization"), [
    ("llama-3.1-8b-instruct-gptq-int4",  # quantize_config.json at 55aee82
     {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}),
    ("qwen2.5-32b-instruct-gptq-int4",
     {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}),
    ("qwen3-8b-fp8",
     {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}),
    ("qwen3-32b-fp8",
     {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}),
    ("llama-3.1-8b-instruct-fp8",
     {"quant_method": "compressed-tensors", "format": "naive-quantized", "ignore": ["lm_head"]}),
    ("llama-3.1-8b-instruct-awq-int4",  # the format AutoAWQ writes; vllm-project/vllm#37387
     {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True,
      "version": "gemm"}),
])
def test_quantized_models_say_how(name: str, quantization: Mapping[str, Any]) -> None:
    found = checkpoint_of(name).config["quantization_config"]
    assert {key: found[key] for key in quantization} == quantization


def test_qwen_pads_the_mlp_of_its_quantized_72b() -> None:
    """29568 is no multiple of 128 x 8; the AWQ repository was padded so that tp 8 divides."""
    assert checkpoint_of("qwen2.5-72b-instruct").config["intermediate_size"] == 29568
    assert checkpoint_of("qwen2.5-72b-instruct-awq").config["intermediate_size"] == 29696
    assert 29568 % (128 * 8) == 896
    assert 29696 % (128 * 8) == 0


def test_head_dim_is_read_where_hidden_size_does_not_give_it() -> None:
    """Mistral Nemo has 32 heads of 128 on 5120 features; Qwen3-0.6B 16 of 128 on 1024."""
    assert structure_of("mistral-nemo-12b").sizes["q_size"] == 4096
    assert structure_of("qwen3-0.6b").sizes["q_size"] == 2048
    assert structure_of("llama-3.2-1b").sizes["q_size"] == 2048
