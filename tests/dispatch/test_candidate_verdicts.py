"""Why a candidate of vLLM 0.32.0 is turned down: disabled, not known, in two parts; and that every
reason has a source."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from candidate_lists import LISTS, TABLE, facts, rejected, select
from quantplan.dispatch.candidates import verdict_of, walk
from quantplan.dispatch.predicates import FAIL, PASS, UNKNOWN, Check
from quantplan.dispatch.trace import Alternative

INIT = "model_executor/kernels/linear/__init__.py"


# VLLM_DISABLED_KERNELS.


@pytest.mark.parametrize("family, kernel, reason", [
    ("fp8_w8a8", "CutlassFP8ScaledMMLinearKernel",
     " CutlassFP8ScaledMMLinearKernel is disabled by environment variable"),
    ("mixed_precision", "MarlinLinearKernel",
     " MarlinLinearKernel disabled by environment variable")])
def test_a_disabled_kernel_is_rejected_in_the_engine_s_words(
    family: str, kernel: str, reason: str
) -> None:
    """__init__.py:is_supported_and_can_implement_kernel and choose_mp_linear_kernel word it
    differently."""
    selection = select(family, 89, env__VLLM_DISABLED_KERNELS=(kernel,))
    assert selection.kernel != kernel
    assert rejected(selection)[kernel] == reason
    disabled = next(c for c in selection.candidates if c.kernel == kernel)
    assert disabled.checks[0] == Check(
        f"{kernel}.disabled", FAIL, f"env.VLLM_DISABLED_KERNELS names {kernel}",
        f"{INIT}:is_supported_and_can_implement_kernel", fact="env.VLLM_DISABLED_KERNELS")
    assert {check.verdict for check in disabled.checks[1:]} == {PASS}


def test_all_kernels_disabled_is_an_error_with_every_reason_in_order() -> None:
    names = tuple(LISTS["int8_w8a8"])
    selection = select("int8_w8a8", 80, env__VLLM_DISABLED_KERNELS=names)
    assert selection.error == (
        "Failed to find a kernel that can implement the ScaledMM linear layer. Reasons: \n"
        " CutlassInt8ScaledMMLinearKernel is disabled by environment variable\n"
        " TritonInt8ScaledMMLinearKernel is disabled by environment variable\n"
        " HummingInt8ScaledMMLinearKernel is disabled by environment variable")


def test_a_name_must_be_exact() -> None:
    names = ("CutlassFP8ScaledMMLinear", " CutlassFP8ScaledMMLinearKernel", "")
    assert select("fp8_w8a8", 89, env__VLLM_DISABLED_KERNELS=names) == select("fp8_w8a8", 89)


# Facts that are not known from here.


def test_an_unknown_library_before_the_choice_makes_it_conditional() -> None:
    selection = select("fp8_w8a8", 100, lib__flashinfer=None, quant__act_scale="tensor")
    assert selection.kernel == "CutlassFP8ScaledMMLinearKernel"
    assert selection.alternatives == (
        Alternative("FlashInferFP8ScaledMMLinearKernel", ("lib.flashinfer",)),)
    first = selection.candidates[0]
    assert (first.verdict, first.considered) == (UNKNOWN, True)
    assert first.decisive is not None
    assert first.decisive.text == "lib.flashinfer is not known; must be true"


def test_an_unknown_library_that_another_check_settles_is_no_alternative() -> None:
    selection = select("fp8_w8a8", 89, lib__flashinfer=None)
    assert selection.alternatives == ()
    assert selection.candidates[0].verdict == FAIL


def test_an_unknown_library_behind_the_choice_is_no_alternative() -> None:
    selection = select("fp8_w8a8", 89, lib__humming=None)
    assert selection.alternatives == ()
    assert selection.candidates[-1].verdict == UNKNOWN


def test_each_unknown_candidate_names_its_own_facts() -> None:
    selection = select("fp8_block_w8a8", 90, lib__flashinfer=None, lib__deep_gemm=None)
    assert selection.kernel == "CutlassFp8BlockScaledMMKernel"
    assert [alternative.kernel for alternative in selection.alternatives] == [
        "FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "DeepGemmFp8BlockScaledMMKernel"]
    assert set(selection.alternatives[0].if_facts) == {"lib.flashinfer", "lib.deep_gemm"}
    assert selection.alternatives[1].if_facts == ("lib.deep_gemm",)


def test_a_list_that_only_unknown_facts_could_serve_has_no_choice_but_an_alternative() -> None:
    """Failing and depending on a library are different answers."""
    selection = select("w8a16_fp8", 89, lib__humming=None,
                       env__VLLM_DISABLED_KERNELS=("MarlinFP8ScaledMMLinearKernel",))
    assert selection.kernel is None
    assert selection.alternatives == (
        Alternative("HummingFP8ScaledMMLinearKernel", ("lib.humming",)),)


# A kernel of two parts.

TWO = "FlashInferFp8DeepGEMMDynamicBlockScaledKernel"


@pytest.mark.parametrize("changes, reason", [
    ({"lib__flashinfer": False},
     "base is not supported due to FlashInfer block-scale FP8 GEMM is not available."),
    ({"lib__deep_gemm": False}, "fallback is not supported due to Currently, only Hopper and "
                                "Blackwell GPUs are supported."),
    ({"lib__flashinfer": False, "lib__deep_gemm": False},
     "base is not supported due to FlashInfer block-scale FP8 GEMM is not available.; fallback is "
     "not supported due to Currently, only Hopper and Blackwell GPUs are supported."),
    ({"dtype__model": "float16"},
     "base cannot implement due to The provided metadata is not supported.; fallback cannot "
     "implement due to Supports only output dtype of bfloat16"),
    ({"lib__flashinfer": False, "dtype__model": "float16"},
     "base is not supported due to FlashInfer block-scale FP8 GEMM is not available.")])
def test_a_two_part_kernel_reports_both_parts_phase_by_phase(
    changes: dict[str, Any], reason: str
) -> None:
    """BlockScaledMMLinearKernel.py:Fp8BlockScaledDynamicMMLinearKernel.is_supported and
    can_implement join the parts' reasons with "; "; the second phase is not asked after the
    first failed."""
    selection = select("fp8_block_w8a8", 90, **changes)
    assert rejected(selection)[TWO] == f"{TWO} {reason}."


def test_a_two_part_kernel_has_the_checks_of_both_parts() -> None:
    checks = select("fp8_block_w8a8", 90).candidates[0].checks
    assert {check.id.split(".")[0] for check in checks} == {
        "FlashInferFp8BlockScaledMMKernel", "DeepGemmFp8BlockScaledMMKernel"}


# Checks and verdicts.


def test_the_capability_gate_is_the_first_check_and_cites_its_own_symbol() -> None:
    """Row llama8b/gptq4-g128/80 rejects Machete at get_min_capability."""
    selection = select("mixed_precision", 80)
    machete = selection.candidates[1]
    assert machete.checks[0].text == "gpu.capability is 8.0; must be at least 9.0"
    assert machete.checks[0].source == ("model_executor/kernels/linear/mixed_precision/machete.py:"
                                        "MacheteLinearKernel.get_min_capability")
    assert machete.reason == (
        "MacheteLinearKernel requires capability 90, current compute  capability is 80")


@pytest.mark.parametrize("verdicts, whole", [
    ((), PASS), ((PASS, PASS), PASS), ((PASS, UNKNOWN), UNKNOWN), ((UNKNOWN, FAIL), FAIL)])
def test_one_failure_settles_it_else_one_unknown_does(verdicts: tuple[str, ...], whole: str
                                                      ) -> None:
    assert verdict_of(tuple(Check("x", verdict, "", "") for verdict in verdicts)) == whole


def test_every_check_and_step_has_a_source() -> None:
    for family in LISTS:
        for capability in (75, 90, 120):
            selection = select(family, capability, flag__linear_backend="triton")
            sources = [check.source for c in selection.candidates for check in c.checks]
            sources += [c.source for c in selection.candidates]
            sources += [step.source for step in selection.steps]
            assert [s for s in sources if not re.search(r"\.py:\w+", s)] == []


@pytest.mark.parametrize("family", LISTS)
def test_a_family_asks_only_for_facts_that_its_layers_have(family: str) -> None:
    """A row that names a fact of another family would crash, not refuse."""
    for capability in (60, 75, 86, 89, 90, 100, 110, 120):
        for zero_points in (True, False):
            changes = {"quant__zero_points": zero_points} if family == "mixed_precision" else {}
            walk(TABLE, family, facts(family, capability, **changes))
