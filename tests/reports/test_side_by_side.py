"""Two engines' answers to one question: what stands beside what, and the sentence that says where
they differ. Kernels and refusals are the engines' own (tests/golden)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from quantplan.dispatch.joined import joined
from quantplan.reports.explain_text import explain_text
from quantplan.tables.errors import NotKnownError

from quantplan import EngineAnswers, explain_engines

LLAMA_8B = {**LLAMA, "num_hidden_layers": 32}


def both(quant: str | None, capability: str, **options: Any) -> EngineAnswers:
    config = {**LLAMA_8B, **({"quantization_config": quantization(quant)} if quant else {})}
    return explain_engines(config, capability=capability, **options)


def text(found: EngineAnswers, **options: Any) -> str:
    return explain_text((found.checkpoint, found.gpu, found.deployment), found.answers, **options)


@pytest.mark.parametrize("quant, capability, sentence", [
    ("fp8-dynamic", "8.0", "They do not differ in the modes and kernels of their layers."),
    ("gptq4-g128", "7.5", "vLLM 0.32.0 starts and SGLang 0.5.22 does not: Unknown quantization "
     "method: gptq (method name)."),
    ("fp8-dynamic", "7.5", "vLLM 0.32.0 starts and SGLang 0.5.22 does not: The quantization method "
     "fp8 is not supported for the current GPU. Minimum capability: 80. Current capability: 75 "
     "(capability gate)."),
    ("awq4-g128", "9.0", "They differ in self_attn.qkv_proj, self_attn.o_proj, mlp.gate_up_proj "
     "and 1 more: vLLM 0.32.0 runs W4A16 Machete, SGLang 0.5.22 runs W4A16 Marlin, because vLLM "
     "0.32.0 tries Machete before Marlin and SGLang 0.5.22 has no Machete kernel in the list of "
     "such layers."),
    ("fp8-block128", "8.9", "They differ in self_attn.qkv_proj, self_attn.o_proj, mlp.gate_up_proj "
     "and 1 more: vLLM 0.32.0 runs W8A16 Marlin, SGLang 0.5.22 runs W8A8 Triton, because SGLang "
     "0.5.22 turns Marlin down: the compute capability is 8.9; must be at most 8.8."),
    (None, "9.0", "Neither quantizes a layer.")])
def test_where_they_differ_and_why(quant: str | None, capability: str, sentence: str) -> None:
    found = both(quant, capability)
    assert found.difference == sentence
    assert f"\n\n  {sentence}\n\n" in text(found)


def test_layers_stand_side_by_side() -> None:
    table = text(both("awq4-g128", "9.0")).split("\n\n")[3].splitlines()
    assert table[0].split() == ["layer", "count", "N", "x", "K", "vLLM", "kernel", "mode",
                                "SGLang", "operator", "mode"]
    assert table[2].split() == ["self_attn.qkv_proj", "32", "6144", "x", "4096",
                                "MacheteLinearKernel", "W4A16", "gptq_marlin_gemm", "W4A16"]


def test_what_one_refuses_leaves_the_other_s_layers() -> None:
    """And the columns say whose they are."""
    whole = text(both("gptq4-g128", "7.5"))
    assert ("\nSGLang 0.5.22 refuses it:\n  ValueError:\n"
            "    Unknown quantization method: gptq.") in whole
    assert "  N x K  vLLM kernel         mode\n" in whole


def test_layers_of_other_names_are_joined() -> None:
    """vLLM has routed_experts within experts, SGLang has not."""
    found = explain_engines("qwen3-30b-a3b", capability="9.0", as_format="fp8")
    traces = [each.trace for each in found.answers if each.trace]
    pairs = {tuple(layer and layer.path for layer in place.layers) for place in joined(traces)}
    assert ("model.layers.0.mlp.experts.routed_experts", "model.layers.0.mlp.experts") in pairs
    assert not [pair for pair in pairs if None in pair]


def test_a_layer_of_another_name_is_known_by_its_size() -> None:
    """fused_qkv_a_proj is fused_qkv_a_proj_with_mqa in SGLang; the router stands in vLLM alone."""
    found = explain_engines("deepseek-r1", capability="9.0", tp=8)
    traces = [each.trace for each in found.answers if each.trace]
    pairs = {tuple(layer and layer.path for layer in place.layers) for place in joined(traces)}
    start = "model.layers.3.self_attn.fused_qkv_a_proj"
    assert (start, f"{start}_with_mqa") in pairs
    assert ("model.layers.3.mlp.gate", None) in pairs


def test_what_only_one_engine_has_is_the_other_s_gap() -> None:
    found = both("fp8-dynamic", "9.0", linear_backend="triton")
    vllm, sglang = found.answers
    assert vllm.trace is not None
    assert sglang.trace is None
    assert found.difference is None
    assert ("  SGLang 0.5.22   not asked: --linear-backend with SGLang; wanted flags of SGLang. "
            "Drop --linear-backend.\n") in text(found)
    assert [each["schema"] for each in found.to_dicts()] == [
        "quantplan/explain/1", "quantplan/error/1"]
    assert found.to_dicts()[1]["engine"] == {"name": "sglang", "version": "0.5.22"}


def test_no_answer_at_all_is_raised() -> None:
    config = {**LLAMA, "architectures": ["HrmTextForCausalLM"]}
    with pytest.raises(NotKnownError, match="no family row for the architecture Hrm"):
        explain_engines(config, capability="9.0")


def test_engines_may_be_two_versions_of_one() -> None:
    found = explain_engines(LLAMA_8B, engines=("sglang", "sglang@0.5.23"), capability="9.0")
    assert "  SGLang 0.5.22 operator  mode         SGLang 0.5.23 operator  mode" in text(found)


def test_every_differing_group_is_named() -> None:
    """Modes that differ first, then most weights."""
    found = explain_engines("deepseek-r1", capability="12.0", tp=8)
    told = str(found.difference)
    assert told.startswith(
        "They differ in self_attn.fused_qkv_a_proj, mlp.experts.routed_experts: ")
    assert "; in self_attn.q_b_proj, self_attn.kv_b_proj, self_attn.o_proj and 2 more: " in told


def test_a_narrow_terminal_has_a_table_per_engine() -> None:
    whole = text(both("awq4-g128", "9.0"), width=80)
    tables = [block for block in whole.split("\n\n") if block.startswith("  layer ")]
    assert [("vLLM kernel" in table, "SGLang operator" in table) for table in tables] == [
        (True, False), (False, True)]
    assert max(len(line) for table in tables for line in table.splitlines()) <= 80


@pytest.mark.parametrize("kernel", ["gptq_marlin_gemm", "fa3"])
def test_why_not_the_operator_that_runs(kernel: str) -> None:
    """SGLang's lists have several rows of one operator."""
    found = both("awq4-g128", "9.0", engines=("sglang",))
    assert ": it is the one chosen" in text(found, why_not=[("sglang", kernel)])
