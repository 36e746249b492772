"""What SGLang 0.5.22 itself built for small models of its dense and multimodal classes, row by row:
every layer's path, class, method and sizes, or the words with which the building ends."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from quantplan.tables.errors import NotKnownError

from quantplan import explain

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = [json.loads(line) for name in ("sglang-models-0.5.22", "sglang-further-0.5.22")
        for line in gzip.decompress((GOLDEN / f"{name}.jsonl.gz").read_bytes()).splitlines()]
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1024, "hidden_act": "silu", "head_dim": 64,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}


def ask(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return our answer."""
    return explain(config, engine="sglang", engine_version="0.5.22",
                   **{"capability": 90, **options}).to_dict()


def starred(path: str) -> str:
    """Return the path with * for every number."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_the_model_is_built_as_the_engine_builds_it(row: dict[str, Any]) -> None:
    ours = ask(row["config"], capability=row["capability"], tp=row["tp_size"],
               quantization=row.get("quantization"), dtype=row.get("dtype"),
               trust_remote_code=row.get("trust_remote_code", False))
    if "error" in row:
        assert [ours["error"]["type"], ours["error"]["message"]] == row["error"]
        return
    assert ours["error"] is None
    found = {(starred(x["path"]), x["module"], x["method"]): (x["n"], x["k"])
             for x in ours["layers"] if x["method"]}
    assert {*found} == {tuple(layer[:3]) for layer in row["layers"]}
    sizes = {(starred(x["path"]), x["module"], x["method"], x["n"], x["k"])
             for x in ours["layers"]}
    assert not [layer for layer in row["layers"] if layer[3] and tuple(layer) not in sizes]


@pytest.mark.parametrize("changes, error", [
    ({"architectures": ["NoSuchForCausalLM"]}, (
        "ValueError", "Cannot find model module. 'NoSuchForCausalLM' is not a registered model in "
        "the Transformers library (only relevant if the model is meant to be in Transformers) and "
        "'AutoModel' is not present in the model config's 'auto_map' (relevant if the model is "
        "custom).")),
    ({"hidden_act": "gelu"}, (
        "ValueError", "Unsupported activation: gelu. Only silu is supported for now.")),
])
def test_what_no_class_serves(changes: dict[str, Any], error: tuple[str, str]) -> None:
    """model_loader/utils.py:resolve_transformers_arch; models/llama.py:LlamaMLP."""
    found = ask({**LLAMA, **changes})["error"]
    assert (found["type"], found["message"]) == error


def test_the_first_class_that_the_engine_has_serves_the_model() -> None:
    """models/registry.py: NoSuch is no class of either, and stands first."""
    found = ask({**LLAMA, "architectures": ["NoSuchForCausalLM", "LlamaForCausalLM"]})
    assert found["error"] is None
    assert found["layers"][0]["path"] == "model.embed_tokens"


def test_full_attention_is_every_fourth_layer_whatever_layer_types_says() -> None:
    """configs/qwen3_next.py:Qwen3NextConfig.layers_block_type counts full_attention_interval."""
    config = next(row["config"] for row in ROWS if row["id"] == "q35|none|sm90|tp1")
    text = {**config["text_config"], "layer_types": ["full_attention"] * 4}
    found = {x["path"]: x["indices"] for x in ask({**config, "text_config": text})["layers"]}
    assert found["model.layers.*.qkv_proj"] == [3]
    assert found["model.layers.*.linear_attn.out_proj"] == [0, 1, 2]


def test_a_class_of_transformers_is_not_known() -> None:
    with pytest.raises(NotKnownError, match="Olmo3ForCausalLM"):
        ask({**LLAMA, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"})


def test_a_class_without_a_row_is_named_in_one_line() -> None:
    with pytest.raises(NotKnownError) as refused:
        ask({**LLAMA, "architectures": ["Gemma4ForCausalLM"]})
    assert str(refused.value) == (
        "SGLang's Gemma4ForCausalLM. Its layers are not in SGLang's table yet; those of "
        "GemmaForCausalLM, Gemma3ForCausalLM, Gemma2ForCausalLM are.")


def row_named(name: str) -> dict[str, Any]:
    """Return the config of a golden row, without its quantization."""
    config: dict[str, Any] = next(row["config"] for row in ROWS if row["id"].startswith(name + "|"))
    return {key: value for key, value in config.items() if key != "quantization_config"}


def test_experts_of_sizes_that_differ_between_layers_are_not_known() -> None:
    with pytest.raises(NotKnownError, match="moe_intermediate_size that differs between layers"):
        ask({**row_named("hunyuanlist"), "moe_intermediate_size": [256, 512]})


def test_layers_without_a_name_are_not_known_under_gptq() -> None:
    """layers/quantization/utils.py:get_linear_quant_method reads its config again for a name."""
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    with pytest.raises(NotKnownError, match="query_key_value under GPTQ"):
        ask({**row_named("persimmon"), "quantization_config": gptq})


def test_marlin_s_experts_refuse_gelu_when_they_run() -> None:
    """layers/moe/moe_runner/marlin.py:fused_experts_none_to_marlin."""
    row = next(row for row in ROWS if row["id"] == "g26|nvfp4|sm90|tp1")
    said = [finding["message"] for finding in ask(row["config"])["findings"]]
    assert any("Only gated SiLU/SiTU is supported, got gelu." in text for text in said)
