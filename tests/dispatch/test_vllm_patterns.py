"""Entries of ignore lists and dynamic rules that do not do what they look like."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, ask, found, only, quantization, scheme

DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize("quant, field, entries, dead", [
    ("fp8-dynamic", "ignored_layers", ["down_proj", DOWN], "1 of 2 ignore entries match no layer: "
                                                          "'down_proj'"),
    ("ct-fp8-dynamic", "ignore", ["re:.*visual.*", "lm_head"],
     "1 of 2 ignore entries match no layer: 're:.*visual.*'"),
    ("awq4-g128", "modules_to_not_convert", ["visual"],
     "1 of 1 ignore entries match no layer: 'visual'"),
    ("fp8-dynamic", "ignored_layers", ["a", "b", "c", "d"],
     "4 of 4 ignore entries match no layer: 'a', 'b', 'c' ...")])
def test_ignore_entries_that_match_nothing(
    quant: str, field: str, entries: list[str], dead: str
) -> None:
    finding = only(ask(quantization(quant, **{field: entries})), "ignore-matches-nothing")
    assert (finding.stage, finding.severity, finding.message) == (
        "layer assignment", "warning", dead)


@pytest.mark.parametrize("quant, field, entries", [
    ("fp8-dynamic", "ignored_layers", [DOWN, "lm_head", "model.layers.1.self_attn.qkv_proj"]),
    ("ct-fp8-dynamic", "ignore", ["re:.*self_attn.*", "lm_head"]),
    ("awq4-g128", "modules_to_not_convert", ["down_proj"]), ("awq4-g128", "lm_head", False)])
def test_ignore_entries_that_match(quant: str, field: str, entries: Any) -> None:
    answer = ask(quantization(quant, **{field: entries}))
    assert answer.trace.error is None
    assert found(answer, "ignore-matches-nothing") == []


MOE = {**LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
       "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768, "head_dim": 128}
EXPERTS = "model.layers.0.mlp.experts"


MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}


def test_wildcards_that_match_nothing() -> None:
    entries = ["visual*", "*self_attn*", "model.layers.0*", "mtp*", "model.layers.9*", "lm_head"]
    for mapped in (LLAMA, MOE):
        answer = ask({**MODELOPT, "ignore": entries}, model=mapped)
        finding = only(answer, "ignore-matches-nothing")
        assert finding.message.startswith("1 of ")
        assert finding.message.split(": ")[1] in ("'visual'", "'visual*'")
        assert finding.hint is not None


@pytest.mark.parametrize("config, field, method", [
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "ignored_layers", "Fp8MoEMethod"),
    (MODELOPT, "ignore", "ModelOptFp8MoEMethod")])
def test_one_expert_s_name_leaves_all_of_its_layer(
    config: dict[str, Any], field: str, method: str
) -> None:
    """quant_utils.py:is_layer_skipped: the layer's name stands in the listed one."""
    answer = ask({**config, field: [f"{EXPERTS}.3.up_proj"]}, model=MOE)
    methods = {x.layer_index: x.method for x in answer.trace.layers if x.module == "RoutedExperts"}
    assert methods == {0: "UnquantizedFusedMoEMethod", 1: method}
    assert found(answer, "ignore-matches-nothing") == []
    assert only(answer, "ignore-takes-whole-fused-layer").message == (
        f"'{EXPERTS}.3.up_proj' names a part of {EXPERTS}: all of its experts stay in 16 bits")


def test_all_experts_named_is_no_mistake() -> None:
    names = [f"{EXPERTS}.{i}.{leaf}" for i in range(8)
             for leaf in ("gate_proj", "up_proj", "down_proj")]
    answer = ask(quantization("fp8-dynamic", ignored_layers=names), model=MOE)
    assert found(answer, "ignore-takes-whole-fused-layer") == []
    assert found(answer, "ignore-matches-nothing") == []


@pytest.mark.parametrize("targets, words", [
    (["Linear", "re:.*visual.*"], "1 of 2 targets match no layer: 're:.*visual.*'; "),
    (["re:.*self_attn.*", "re:.*experts.*\\.(gate|up|down)_proj$"], None),
    (["Linear"], None), (["model.layers.0.self_attn.q_proj", "Linear"], None)])
def test_targets_that_serve_no_layer(targets: list[str], words: str | None) -> None:
    answer = ask(scheme("ct-w4a16", targets=targets), model=MOE)
    told = [f.message for f in found(answer, "target-matches-nothing")]
    assert [message.startswith(str(words)) for message in told] == ([True] if words else [])


def test_modules_listed_as_quantized_that_are_none() -> None:
    """auto_gptq.py:AutoGPTQConfig reads modules_in_block_to_quantize as parts of paths."""
    blocks = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["mlp.fc1"]]
    answer = ask(quantization("gptq4-g128", modules_in_block_to_quantize=blocks))
    assert only(answer, "target-matches-nothing").message.startswith(
        "1 of 4 modules_in_block_to_quantize entries match no layer: 'mlp.fc1'; ")


def test_norms_and_layers_past_the_last_are_no_mistakes() -> None:
    """The published GLM-5.1-FP8 and Qwen3-30B-A3B-FP8 list these beside a name that is wrong."""
    entries = ["model.layers.0.input_layernorm", "model.norm", "model.layers.9999.eh_proj",
               f"{DOWN}.bias", "model.layers.0.self_attn.k_norm.bias", "model.layers.0.q_pro"]
    finding = only(ask(quantization("fp8-dynamic", ignored_layers=entries)),
                   "ignore-matches-nothing")
    assert finding.message == ("1 of 6 ignore entries match no layer: 'model.layers.0.q_pro'")


# Entries that name one leaf and take the whole fused layer.


@pytest.mark.parametrize("quant, field, entries, words", [
    ("awq4-g128", "modules_to_not_convert", ["v_proj"],
     "'v_proj' names a part of qkv_proj and fits that name too: all of it stays in 16 bits"),
    ("awq4-g128", "modules_to_not_convert", ["up_proj"],
     "'up_proj' names a part of gate_up_proj and fits that name too: all of it stays in 16 bits"),
    ("ct-fp8-dynamic", "ignore", ["lm_head", "re:.*v_proj"],
     "'re:.*v_proj' names a part of qkv_proj and fits that name too: all of it stays in 16 bits")])
def test_a_leaf_that_takes_the_whole_fused_layer(
    quant: str, field: str, entries: list[str], words: str
) -> None:
    """utils/quant_utils.py:is_layer_skipped and compressed_tensors/utils.py:should_ignore_layer try
    the fused name first; the engine answers UnquantizedLinearMethod for it."""
    answer = ask(quantization(quant, **{field: entries}), "8.0")
    finding = only(answer, "ignore-takes-whole-fused-layer")
    assert (finding.severity, finding.message) == ("warning", words)
    name = "gate_up_proj" if "up_proj" in entries else "qkv_proj"
    assert {layer.method for layer in answer.trace.layers if layer.path.endswith(name)} == {
        "UnquantizedLinearMethod"}


@pytest.mark.parametrize("quant, field, entries", [
    ("awq4-g128", "modules_to_not_convert", ["q_proj", "k_proj", "qkv_proj"]),
    ("awq4-g128", "modules_to_not_convert", ["self_attn", "lm_head"]),
    ("ct-fp8-dynamic", "ignore", ["re:.*self_attn.*"]),
    ("ct-fp8-dynamic", "ignore", ["lm_head", "model.layers.0.self_attn.qkv_proj"])])
def test_entries_that_mean_the_fused_layer(quant: str, field: str, entries: list[str]) -> None:
    answer = ask(quantization(quant, **{field: entries}), "8.0")
    assert answer.trace.error is None
    assert found(answer, "ignore-takes-whole-fused-layer") == []


@pytest.mark.parametrize("rule, name, words", [
    ("-:.*q_proj", "dynamic-rule-matches-nothing",
     "1 of 1 dynamic rules match no layer: '.*q_proj'"),
    ("+:.*v_proj", "dynamic-rule-takes-whole-fused-layer",
     "the dynamic rule '.*v_proj' names a part of qkv_proj and fits that name too: it applies to "
     "all of it")])
def test_dynamic_rules_for_a_leaf(rule: str, name: str, words: str) -> None:
    """utils/gptq_utils.py:get_dynamic_override sees fused names only (vllm-project/vllm#50214)."""
    answer = ask(quantization("gptq4-g128", dynamic={rule: {"bits": 8}}), "8.0")
    finding = only(answer, name)
    assert (finding.severity, finding.message) == ("warning", words)


@pytest.mark.parametrize("rule", ["-:.*qkv_proj", "+:.*down_proj", r"-:model\.layers\.1\..*"])
def test_dynamic_rules_for_whole_layers(rule: str) -> None:
    answer = ask(quantization("gptq4-g128", dynamic={rule: {}}), "8.0")
    assert [f.id for f in answer.trace.findings if f.id.startswith("dynamic")] == []
