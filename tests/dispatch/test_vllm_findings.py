"""What passes selection and fails later, or runs but not as hoped; and the checkpoint's headers
against the plan. Every finding has a case that trips it and one that does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import (
    AWQ_PARTS,
    FP8_PARTS,
    LLAMA,
    QWEN_72B,
    ask,
    kernels,
    quantization,
    stored,
)
from quantplan import Explanation
from quantplan.dispatch.trace import STAGES, Finding

DOWN = "model.layers.0.mlp.down_proj"
# Llama-3.2-1B: heads of 64 features, so 8 ranks hold half a 128-block of keys each.
LLAMA_1B = {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64}


def found(answer: Explanation, name: str) -> list[Finding]:
    return [finding for finding in answer.trace.findings if finding.id == name]


def only(answer: Explanation, name: str) -> Finding:
    """Return the one finding called NAME."""
    (finding,) = found(answer, name)
    return finding


def starts(answer: Explanation) -> str:
    return str(answer.to_dict()["starts"])


# bfloat16 below 8.0 (platforms/cuda.py:check_if_supports_dtype).


def test_bfloat16_on_7_5_is_refused_by_the_worker() -> None:
    """The model is built, so the outcome is ok; the worker's words come from the engine."""
    answer = ask("awq4-g128", "7.5", dtype="bfloat16")
    assert answer.trace.outcome == "ok"
    assert starts(answer) == "no"
    assert only(answer, "bfloat16-below-8.0") == Finding(
        "activation dtype", "error", "bfloat16-below-8.0",
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Emulated "
        "GPU 7.5 GPU has compute capability 7.5. You can use float16 instead by explicitly setting "
        "the `dtype` flag in CLI, for example: --dtype=half.", "Pass --dtype float16.",
        "platforms/cuda.py:CudaPlatform.check_if_supports_dtype")


@pytest.mark.parametrize("capability, dtype", [("7.5", "float16"), ("7.5", "auto"),
                                               ("8.0", "bfloat16")])
def test_other_dtypes_are_not_refused(capability: str, dtype: str) -> None:
    answer = ask("awq4-g128", capability, dtype=dtype)
    assert found(answer, "bfloat16-below-8.0") == []
    assert starts(answer) == "yes"


def test_auto_is_float16_below_8_0() -> None:
    """config/model.py:_resolve_auto_dtype."""
    assert [ask(None, c).trace.dtype for c in ("7.5", "8.0")] == ["float16", "bfloat16"]


# No machine code in the wheel.


@pytest.mark.parametrize("capability, severity, starting", [
    ("6.0", "error", "no"), ("7.0", "error", "no"), ("11.0", "warning", "yes")])
def test_a_capability_without_machine_code(capability: str, severity: str, starting: str) -> None:
    """cuobjdump of _C: sm 75, 80, 86, 89, 90, 90a and the 100 and 120 families."""
    answer = ask(None, capability, dtype="float16")
    finding = only(answer, "no-machine-code")
    assert (finding.stage, finding.severity) == ("first forward", severity)
    assert finding.message == (f"the 0.32.0 wheel ships no machine code for {capability}; its own "
                               "kernels cannot be expected to run there")
    assert starts(answer) == starting


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3",
                                        "12.0", "12.1"])
def test_a_capability_with_machine_code(capability: str) -> None:
    assert found(ask(None, capability), "no-machine-code") == []


# INT8 on Blackwell (vllm-project/vllm#54311: "Int8 not supported on SM").


@pytest.mark.parametrize("capability", ["10.0", "10.3", "12.0", "12.1"])
def test_int8_selects_cutlass_and_fails_from_10_0(capability: str) -> None:
    answer = ask("ct-w8a8-int8", capability)
    assert answer.trace.outcome == "ok"
    assert starts(answer) == "no"
    finding = only(answer, "int8-cutlass-from-10.0")
    assert (finding.stage, finding.severity) == ("first forward", "error")
    assert finding.message == (
        "CutlassInt8ScaledMMLinearKernel is selected, but its kernel has no INT8 path on "
        f'{capability}: the profile run fails ("Int8 not supported on SM")')


@pytest.mark.parametrize("capability, options", [
    ("9.0", {}), ("8.0", {}), ("12.0", {"linear_backend": "triton"}),
    ("12.0", {"env": {"VLLM_DISABLED_KERNELS": "CutlassInt8ScaledMMLinearKernel"}})])
def test_int8_runs_below_10_0_and_by_the_ways_the_hint_names(
    capability: str, options: dict[str, Any]
) -> None:
    answer = ask("ct-w8a8-int8", capability, **options)
    assert found(answer, "int8-cutlass-from-10.0") == []
    assert starts(answer) == "yes"
    expected = "Triton" if options else "Cutlass"
    assert kernels(answer)[DOWN] == f"{expected}Int8ScaledMMLinearKernel"


# Block FP8 that runs weight-only.


def test_block_fp8_on_8_9_is_weight_only() -> None:
    """Row llama8b/fp8-block128/89: Marlin, though 8.9 has FP8 tensor cores."""
    answer = ask("fp8-block128", "8.9")
    finding = only(answer, "block-fp8-weight-only")
    assert (finding.stage, finding.severity) == ("mode and numerics", "warning")
    assert finding.message == (
        "block FP8 runs weight-only (MarlinFP8ScaledMMLinearKernel) although 8.9 has FP8 tensor "
        "cores: no W8A8 block kernel ahead of it in the list accepts it")
    assert starts(answer) == "yes"
    assert finding.hint == "--linear-backend triton selects TritonFp8BlockScaledMMKernel (W8A8)."
    assert kernels(ask("fp8-block128", "8.9", linear_backend="triton"))[DOWN] == (
        "TritonFp8BlockScaledMMKernel")


@pytest.mark.parametrize("quant, capability", [("fp8-block128", "8.6"), ("fp8-block128", "9.0"),
                                               ("fp8-dynamic", "8.9")])
def test_block_fp8_elsewhere_has_no_such_finding(quant: str, capability: str) -> None:
    assert found(ask(quant, capability), "block-fp8-weight-only") == []


# A group cut by tensor parallelism.


@pytest.mark.parametrize("tp, k", [(2, 14784), (4, 7392), (8, 3696)])
def test_gptq_groups_that_straddle_two_ranks(tp: int, k: int) -> None:
    """Rows qwen72b/gptq4-g128/90/tp: Machete or Humming accept what Marlin refuses, and the scales
    are cut at the floor (vllm-dispatch 6d)."""
    answer = ask("gptq4-g128", "9.0", model=QWEN_72B, tp=tp)
    finding = only(answer, "group-cut-by-tp")
    kernel = kernels(answer)[DOWN]
    assert kernel in ("MacheteLinearKernel", "HummingLinearKernel")
    assert (finding.stage, finding.severity) == ("shapes under TP", "warning")
    assert finding.message == (
        f"{DOWN}: a quantization group straddles two ranks; Marlin refuses it, {kernel} accepts it "
        "and the scales are cut: results are suspect")
    row = next(r for r in answer.to_dict()["layers"] if r["path"].endswith("down_proj"))
    assert (row["k"], row["findings"]) == (k, ["group-cut-by-tp"])


@pytest.mark.parametrize("quant, model, tp", [("gptq4-g128", QWEN_72B, 1), ("gptq4-g128", LLAMA, 8),
                                              ("gptq4-gchan", QWEN_72B, 2)])
def test_whole_groups_are_not_cut(quant: str, model: Any, tp: int) -> None:
    assert found(ask(quant, "9.0", model=model, tp=tp), "group-cut-by-tp") == []


# A block cut in a fused layer, which fp8 checkpoints may do.


def test_a_block_cut_in_a_fused_layer() -> None:
    """linear.py:ColumnParallelLinear._maybe_allow_fp8_block_shape_mismatch: 64 key features a rank
    are half a block, though 384 outputs are three."""
    answer = ask("fp8-block128", "9.0", model=LLAMA_1B, tp=8)
    assert answer.trace.error is None
    finding = only(answer, "block-cut-in-fused-layer")
    assert finding.message.startswith("model.layers.0.self_attn.qkv_proj: ")
    assert (finding.stage, finding.severity) == ("shapes under TP", "warning")


@pytest.mark.parametrize("block, model, tp", [([128, 128], LLAMA, 8), ([64, 64], LLAMA_1B, 8),
                                              ([128, 128], LLAMA_1B, 4)])
def test_whole_blocks_are_not_cut(block: list[int], model: Any, tp: int) -> None:
    answer = ask(quantization("fp8-block128", weight_block_size=block), "9.0", model=model, tp=tp)
    assert answer.trace.error is None
    assert found(answer, "block-cut-in-fused-layer") == []


# Ignore entries that match nothing.


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


# Flags and variables.


def test_a_removed_variable() -> None:
    """envs.py of 0.32.0 has no VLLM_TEST_FORCE_FP8_MARLIN."""
    finding = only(ask("fp8-dynamic", env={"VLLM_TEST_FORCE_FP8_MARLIN": "1"}), "removed-variable")
    assert finding == Finding("flags", "info", "removed-variable", "VLLM_TEST_FORCE_FP8_MARLIN is "
                              "not read by this version any more", "Drop it.", "envs.py")
    assert kernels(ask("fp8-dynamic", env={"VLLM_TEST_FORCE_FP8_MARLIN": "1"})) == kernels(
        ask("fp8-dynamic"))


@pytest.mark.parametrize("names, unknown", [
    ("Marlin", ["Marlin"]), ("MarlinLinearKernel", []), ("", []),
    ("MacheteLinearKernel, MarlinLinearKernel", [" MarlinLinearKernel"]),
    ("a,MarlinLinearKernel,b", ["a", "b"])])
def test_names_that_disable_nothing(names: str, unknown: list[str]) -> None:
    """envs.py splits at commas and strips nothing."""
    findings = found(ask("awq4-g128", env={"VLLM_DISABLED_KERNELS": names}),
                     "unknown-disabled-kernel")
    assert [finding.message.split(", which")[0] for finding in findings] == [
        f"VLLM_DISABLED_KERNELS names {name}" for name in unknown]


def test_a_backend_without_a_kernel_for_these_layers() -> None:
    answer = ask("fp8-dynamic", "8.9", linear_backend="machete")
    finding = only(answer, "linear-backend-without-kernel")
    assert (finding.stage, finding.severity) == ("kernel selection", "warning")
    assert finding.message == ("--linear-backend machete has no fp8_w8a8 kernel: automatic "
                               "selection is used for that layer type")
    assert found(ask("fp8-dynamic", "8.9", linear_backend="cutlass"),
                 "linear-backend-without-kernel") == []


def test_a_choice_that_rests_on_a_library_says_what_comes_without_it() -> None:
    answer = ask("fp8-static", "10.0")
    linear = [f for f in found(answer, "assumed-library")
              if f.message.startswith("FlashInferFP8ScaledMMLinearKernel ")]
    assert [(f.stage, f.severity, f.hint) for f in linear] == [
        ("kernel selection", "info", "--lib flashinfer=off shows that answer.")]
    assert linear[0].message.endswith("; without flashinfer: CutlassFP8ScaledMMLinearKernel")
    without = ask("fp8-static", "10.0", libs={"flashinfer": False})
    assert kernels(without)[DOWN] == "CutlassFP8ScaledMMLinearKernel"


@pytest.mark.parametrize("options", [{"libs": {"flashinfer": True}}, {"libs": {"flashinfer": False}}])
def test_a_library_that_was_named_is_not_assumed(options: dict[str, Any]) -> None:
    assert found(ask("fp8-static", "10.0", **options), "assumed-library") == []


def test_a_choice_without_a_library_assumes_none() -> None:
    assert found(ask("fp8-dynamic", "8.9"), "assumed-library") == []


# The headers.


def test_headers_that_agree_find_nothing() -> None:
    answer = ask("fp8-dynamic", "8.9", tensors=stored(FP8_PARTS))
    assert [f.id for f in answer.trace.findings if f.severity != "info"] == []
    assert starts(answer) == "yes"


def test_a_layer_that_is_stored_in_16_bits() -> None:
    answer = ask("fp8-dynamic", "8.9", tensors=stored(FP8_PARTS, "down_proj"))
    finding = only(answer, "stored-unquantized")
    assert (finding.stage, finding.severity) == ("weight loading", "error")
    assert finding.message == (f"{DOWN} and 1 more layers are planned as quantized but stored in 16 "
                               "bits: loading fails, or the weights are read wrongly")
    assert starts(answer) == "no"
    named = quantization("fp8-dynamic", ignored_layers=[
        f"model.layers.{i}.mlp.down_proj" for i in range(2)])
    assert found(ask(named, "8.9", tensors=stored(FP8_PARTS, "down_proj")),
                 "stored-unquantized") == []


@pytest.mark.parametrize("leaf", ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"])
def test_one_leaf_of_a_fused_layer_that_is_stored_in_16_bits(leaf: str) -> None:
    """Any leaf, not only the first: the fused parameter is FP8."""
    answer = ask("fp8-dynamic", "8.9", tensors=stored(FP8_PARTS, leaf))
    assert only(answer, "stored-unquantized").severity == "error"


def test_a_single_layer_is_told_in_the_singular() -> None:
    answer = ask("fp8-dynamic", "8.9", tensors=stored(FP8_PARTS, "layers.1.mlp.down_proj"))
    assert only(answer, "stored-unquantized").message.startswith(
        "model.layers.1.mlp.down_proj is planned")


def test_a_quantized_checkpoint_without_its_config() -> None:
    for parts in (FP8_PARTS, AWQ_PARTS):
        answer = ask(None, "8.9", tensors=stored(parts))
        finding = only(answer, "stored-quantized")
        assert (finding.stage, finding.severity) == ("weight loading", "error")
        assert finding.message == (
            "model.layers.0.self_attn.qkv_proj and 7 more layers are planned as 16-bit but stored "
            "quantized: the engine has no parameter for those tensors")
        assert starts(answer) == "no"


def test_an_ignore_list_that_ignores_too_much() -> None:
    quant = quantization("ct-fp8-dynamic", ignore=["lm_head", "re:.*down_proj"])
    finding = only(ask(quant, "8.9", tensors=stored(FP8_PARTS)), "stored-quantized")
    assert finding.message.startswith(f"{DOWN} and 1 more layers are planned as 16-bit")


def test_online_quantization_wants_16_bits() -> None:
    answer = ask(None, "8.9", quantization="fp8_per_tensor", tensors=stored({"weight": "BF16"}))
    assert [f.id for f in answer.trace.findings if f.severity != "info"] == []


# KV scales.


def test_fp8_kv_without_scales_in_the_checkpoint() -> None:
    """quantization/kv_cache.py:BaseKVCacheMethod uses 1.0."""
    answer = ask("fp8-dynamic", "8.9", kv_cache_dtype="fp8", tensors=stored(FP8_PARTS))
    finding = only(answer, "kv-scales-missing")
    assert (finding.stage, finding.severity) == ("scales in the checkpoint", "warning")
    assert finding.message == ("the KV cache is FP8 but the checkpoint stores no k/v scales: 1.0 is "
                               "used silently")


def test_a_kv_scheme_counts_as_fp8_kv() -> None:
    assert only(ask("ct-fp8-kv", "8.9", tensors=stored(FP8_PARTS)), "kv-scales-missing")


@pytest.mark.parametrize("scale", [
    "model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.attn.k_scale",
    "model.layers.0.self_attn.k_proj.output_scale", "model.layers.0.self_attn.kv_scale"])
def test_fp8_kv_with_scales(scale: str) -> None:
    tensors = {**stored(FP8_PARTS), scale: "F32"}
    answer = ask("fp8-dynamic", "8.9", kv_cache_dtype="fp8", tensors=tensors)
    assert found(answer, "kv-scales-missing") == []


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "auto", "tensors": stored(FP8_PARTS)},
                                     {"kv_cache_dtype": "fp8"}])
def test_no_fp8_kv_or_no_headers_say_nothing(options: dict[str, Any]) -> None:
    assert found(ask("fp8-dynamic", "8.9", **options), "kv-scales-missing") == []


# Order and stages.


def test_errors_come_first_and_every_stage_is_one_of_the_twelve() -> None:
    answer = ask("ct-w8a8-int8", "12.0", env={"VLLM_TEST_FORCE_FP8_MARLIN": "1"}, tensors=stored(
        {"weight": "I8", "weight_scale": "BF16"}, "down_proj"), kv_cache_dtype="fp8")
    ranks = [["error", "warning", "info"].index(f.severity) for f in answer.trace.findings]
    assert len(ranks) >= 4
    assert ranks == sorted(ranks)
    assert {f.stage for f in answer.trace.findings} <= set(STAGES)
    assert all(f.source for f in answer.trace.findings)


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
