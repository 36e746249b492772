"""What passes selection and fails later, or runs but not as hoped. Every finding has a case that
trips it and one that does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import (
    LLAMA,
    QWEN_72B,
    ask,
    found,
    kernels,
    only,
    quantization,
    starts,
    stored,
)
from quantplan.dispatch.trace import STAGES, EngineError, Finding

DOWN = "model.layers.0.mlp.down_proj"
# Llama-3.2-1B: heads of 64 features, so 8 ranks hold half a 128-block of keys each.
LLAMA_1B = {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64}


# bfloat16 below 8.0 (platforms/cuda.py:check_if_supports_dtype).


def test_bfloat16_on_7_5_is_refused_by_the_worker() -> None:
    """The model could be built, so its layers are told; the worker's words are the engine's."""
    answer = ask("awq4-g128", "7.5", dtype="bfloat16")
    assert (answer.trace.outcome, starts(answer)) == ("error", "no")
    assert answer.trace.layers
    assert answer.trace.error == EngineError(
        "activation dtype", "ValueError",
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Emulated "
        "GPU 7.5 GPU has compute capability 7.5. You can use float16 instead by explicitly setting "
        "the `dtype` flag in CLI, for example: --dtype=half.",
        source="platforms/cuda.py:CudaPlatformBase.check_if_supports_dtype",
        hint="Pass --dtype float16.")


@pytest.mark.parametrize("capability, dtype", [("7.5", "float16"), ("7.5", "auto"),
                                               ("8.0", "bfloat16")])
def test_other_dtypes_are_not_refused(capability: str, dtype: str) -> None:
    answer = ask("awq4-g128", capability, dtype=dtype)
    assert (answer.trace.error, starts(answer)) == (None, "yes")


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
                                              ("gptq4-gchan", QWEN_72B, 2),
                                              ("gptq4-g128", {**LLAMA, "intermediate_size": 14400},
                                               1)])
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


# Flags and variables.


def test_a_removed_variable() -> None:
    """envs.py of 0.32.0 has no VLLM_TEST_FORCE_FP8_MARLIN."""
    finding = only(ask("fp8-dynamic", env={"VLLM_TEST_FORCE_FP8_MARLIN": "1"}), "removed-variable")
    assert finding == Finding("flags", "warning", "removed-variable", "VLLM_TEST_FORCE_FP8_MARLIN "
                              "is not read by this version any more",
                              "Drop it; this version has --linear-backend marlin.", "envs.py")
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
    assert linear[0].message.endswith("; otherwise CutlassFP8ScaledMMLinearKernel")
    without = ask("fp8-static", "10.0", libs={"flashinfer": False})
    assert kernels(without)[DOWN] == "CutlassFP8ScaledMMLinearKernel"


@pytest.mark.parametrize("present", [True, False])
def test_a_library_that_was_named_is_not_assumed(present: bool) -> None:
    answer = ask("fp8-static", "10.0", libs={"flashinfer": present})
    assert found(answer, "assumed-library") == []


def test_a_choice_without_a_library_assumes_none() -> None:
    assert found(ask("fp8-dynamic", "8.9"), "assumed-library") == []


# Order and stages.


def test_errors_come_first_and_every_stage_is_one_of_the_twelve() -> None:
    answer = ask("ct-w8a8-int8", "12.0", env={"VLLM_TEST_FORCE_FP8_MARLIN": "1"}, tensors=stored(
        {"weight": "I8", "weight_scale": "BF16"}, "down_proj"), kv_cache_dtype="fp8")
    ranks = [["error", "warning", "info"].index(f.severity) for f in answer.trace.findings]
    assert len(ranks) >= 4
    assert ranks == sorted(ranks)
    assert {f.stage for f in answer.trace.findings} <= set(STAGES)
    assert all(f.source for f in answer.trace.findings)


def test_a_variable_that_selection_does_not_read() -> None:
    """A typo looks like a setting that had no effect."""
    for name, severity in (("VLLM_DISABLE_KERNELS", "warning"), ("VLLM_PORT", "info")):
        answer = ask("fp8-dynamic", env={name: "MarlinLinearKernel", "HOME": "x"})
        finding = only(answer, "variable-not-read")
        assert (finding.severity, finding.message) == (
            severity, f"{name} is none of the variables that kernel selection reads: it changes "
            "nothing here")
        assert str(finding.hint).startswith("Did you mean VLLM_DISABLED_KERNELS? Selection reads "
                                            if severity == "warning" else "Selection reads VLLM_")
    assert found(ask("fp8-dynamic", env={"VLLM_BATCH_INVARIANT": "0"}), "variable-not-read") == []
