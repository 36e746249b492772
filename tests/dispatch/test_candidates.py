"""The candidate lists of vLLM 0.32.0: their order, what reorders and filters them, who wins and in
which of the engine's words the others are turned down."""

from __future__ import annotations

import re
from typing import Any

import pytest
from quantplan.dispatch import candidates
from quantplan.dispatch.candidates import order, verdict_of, walk
from quantplan.dispatch.predicates import FAIL, PASS, UNKNOWN, Check
from quantplan.dispatch.trace import Alternative, Selection, Step
from quantplan.tables.engine_rows import load_engine

TABLE = load_engine("vllm", "0.32.0")
INIT = "model_executor/kernels/linear/__init__.py"
ALL_OFF = "VLLM_DISABLED_KERNELS"

# The lists of kernels/linear/__init__.py for CUDA: _POSSIBLE_FP8_KERNELS and its neighbours.
LISTS = {
    "fp8_w8a8": [
        "FlashInferFP8ScaledMMLinearKernel", "CutlassFP8ScaledMMLinearKernel",
        "B12xTensorFP8ScaledMMLinearKernel", "PerTensorTorchFP8ScaledMMLinearKernel",
        "ChannelWiseTorchFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel",
        "HummingFP8ScaledMMLinearKernel"],
    "fp8_block_w8a8": [
        "FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "DeepGemmFp8BlockScaledMMKernel",
        "CutlassFp8BlockScaledMMKernel", "B12xFp8BlockScaledMMKernel",
        "MarlinFP8ScaledMMLinearKernel", "HummingFP8ScaledMMLinearKernel",
        "TritonFp8BlockScaledMMKernel", "BlockWiseTorchFP8ScaledMMLinearKernel"],
    "w8a16_fp8": ["HummingFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel"],
    "int8_w8a8": ["CutlassInt8ScaledMMLinearKernel", "TritonInt8ScaledMMLinearKernel",
                  "HummingInt8ScaledMMLinearKernel"],
    "mixed_precision": [
        "CutlassW4A8LinearKernel", "MacheteLinearKernel", "MarlinLinearKernel",
        "ConchLinearKernel", "ExllamaLinearKernel", "TritonW4A16LinearKernel",
        "HummingLinearKernel"],
    "mxfp8": [
        "FlashInferCutedslMxfp8LinearKernel", "FlashInferCutlassMxfp8LinearKernel",
        "MarlinMxfp8LinearKernel", "B12xMxfp8LinearKernel", "EmulationMxfp8LinearKernel",
        "HummingMxfp8LinearKernel", "FlashInferTrtllmMxfp8LinearKernel"],
    "mxfp4": [
        "FlashInferMxFp4LinearKernel", "MarlinMxFp4LinearKernel", "HummingMxFp4LinearKernel",
        "B12xMxFp4LinearKernel", "EmulationMxfp4LinearKernel"],
}

FP8 = {"quant.weight_scale": "tensor", "quant.act_scale": "token", "quant.act_static": False}
BLOCK = {"quant.weight_scale": "block128x128", "quant.act_scale": "group128",
         "quant.act_static": False}
INT4 = {
    "quant.weight_type": "uint4b8", "quant.bits": 4, "quant.group_size": 128,
    "quant.zero_points": False, "quant.act_type": "bfloat16", "quant.act_mode": "16",
    "quant.pack_factor": 8, "quant.channelwise": False, "quant.grouped": True,
    "quant.group_is_full_k": False,
}
QUANT: dict[str, dict[str, Any]] = {
    "fp8_w8a8": FP8, "fp8_block_w8a8": BLOCK, "w8a16_fp8": FP8, "int8_w8a8": {},
    "mixed_precision": INT4, "mxfp8": {}, "mxfp4": {}}


def facts(family: str, capability: int, **changes: Any) -> dict[str, Any]:
    """Return the facts of Llama-3.1-8B's qkv_proj for a family; names with __ for dots change."""
    found: dict[str, Any] = {
        "gpu.capability": capability, "gpu.family": capability // 10 * 10, "gpu.name": "GPU",
        "gpu.capability_text": f"{capability // 10}.{capability % 10}",
        "gpu.below_80": capability < 80, "gpu.fp8_tensor_cores": capability >= 89,
        "flag.linear_backend": "auto", "dtype.model": "bfloat16", "model.type": "llama",
        "layer.n": 6144, "layer.k": 4096, "layer.n_full": 6144, "layer.k_full": 4096,
        "env.VLLM_DISABLED_KERNELS": (), "env.VLLM_BATCH_INVARIANT": False,
        "env.VLLM_USE_DEEP_GEMM": True, "env.VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": True,
        "env.VLLM_MARLIN_INPUT_DTYPE": None,
        **{f"lib.{name}": row["default"] for name, row in TABLE["libraries"].items()},
        **QUANT[family],
    }
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    assert set(changes) <= set(found)
    return {**found, **changes}


def select(family: str, capability: int, **changes: Any) -> Selection:
    return walk(TABLE, family, facts(family, capability, **changes))


def rejected(selection: Selection) -> dict[str, str | None]:
    """Return the kernels that the engine looked at and turned down -> its words."""
    return {candidate.kernel: candidate.reason for candidate in selection.rejected}


# Order.


@pytest.mark.parametrize("family", LISTS)
def test_the_list_is_the_engine_s(family: str) -> None:
    """kernels/linear/__init__.py: _POSSIBLE_*_KERNELS[PlatformEnum.CUDA]."""
    names, steps = order(TABLE, TABLE["families"][family], facts(family, 89))
    assert (names, steps) == (LISTS[family], [])
    assert [c.kernel for c in select(family, 89).candidates] == LISTS[family]


@pytest.mark.parametrize("capability", [75, 80, 86, 89, 100, 103, 110, 120, 121])
@pytest.mark.parametrize("family", LISTS)
def test_only_9_0_promotes_humming(family: str, capability: int) -> None:
    """utils/humming/priority.py: _HUMMING_PREFERRED_CAPABILITIES = {90}."""
    assert select(family, capability).steps == ()


@pytest.mark.parametrize("family, humming, marlin", [
    ("fp8_w8a8", "HummingFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel"),
    ("fp8_block_w8a8", "HummingFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel"),
    ("mixed_precision", "HummingLinearKernel", "MarlinLinearKernel"),
    ("mxfp8", "HummingMxfp8LinearKernel", "MarlinMxfp8LinearKernel"),
    ("mxfp4", "HummingMxFp4LinearKernel", "MarlinMxFp4LinearKernel")])
def test_9_0_moves_humming_directly_before_marlin(family: str, humming: str, marlin: str) -> None:
    """utils/humming/priority.py:prioritize_humming: every other entry keeps its relative order."""
    selection = select(family, 90)
    names = [candidate.kernel for candidate in selection.candidates]
    assert names.index(humming) + 1 == names.index(marlin)
    assert [name for name in names if name != humming] == [
        name for name in LISTS[family] if name != humming]
    assert selection.steps == (Step(
        "Reordered", f"{humming} before {marlin}",
        "on capability 9.0 the first Humming kernel is tried before the first Marlin kernel",
        "model_executor/layers/quantization/utils/humming/priority.py:prioritize_humming"),)


@pytest.mark.parametrize("family", ["w8a16_fp8", "int8_w8a8"])
def test_9_0_changes_nothing_where_humming_is_first_or_marlin_is_absent(family: str) -> None:
    selection = select(family, 90)
    assert [candidate.kernel for candidate in selection.candidates] == LISTS[family]
    assert selection.steps == ()


# Choice.


@pytest.mark.parametrize("family, capability, kernel", [
    ("fp8_w8a8", 75, "MarlinFP8ScaledMMLinearKernel"),
    ("fp8_w8a8", 86, "MarlinFP8ScaledMMLinearKernel"),
    ("fp8_w8a8", 89, "CutlassFP8ScaledMMLinearKernel"),
    ("fp8_w8a8", 100, "CutlassFP8ScaledMMLinearKernel"),
    ("fp8_block_w8a8", 89, "MarlinFP8ScaledMMLinearKernel"),
    ("fp8_block_w8a8", 90, "FlashInferFp8DeepGEMMDynamicBlockScaledKernel"),
    ("fp8_block_w8a8", 100, "DeepGemmFp8BlockScaledMMKernel"),
    ("fp8_block_w8a8", 110, "CutlassFp8BlockScaledMMKernel"),
    ("fp8_block_w8a8", 120, "DeepGemmFp8BlockScaledMMKernel"),
    ("w8a16_fp8", 80, "HummingFP8ScaledMMLinearKernel"),
    ("int8_w8a8", 120, "CutlassInt8ScaledMMLinearKernel"),
    ("mixed_precision", 75, "MarlinLinearKernel"),
    ("mixed_precision", 89, "MarlinLinearKernel"),
    ("mixed_precision", 90, "MacheteLinearKernel"),
    ("mixed_precision", 120, "MarlinLinearKernel"), ("mxfp8", 89, "MarlinMxfp8LinearKernel"),
    ("mxfp8", 110, "FlashInferCutlassMxfp8LinearKernel"),
    ("mxfp8", 120, "FlashInferCutlassMxfp8LinearKernel"), ("mxfp4", 80, "MarlinMxFp4LinearKernel"),
    ("mxfp4", 90, "HummingMxFp4LinearKernel"), ("mxfp4", 100, "FlashInferMxFp4LinearKernel")])
def test_the_first_that_passes_is_chosen(family: str, capability: int, kernel: str) -> None:
    """Rows llama8b/{fp8-dynamic,fp8-block128,ct-fp8-w8a16,ct-w8a8-int8,gptq4-g128,ct-mxfp8,
    ct-mxfp4}/CAPABILITY of the golden answers."""
    selection = select(family, capability)
    assert selection.kernel == kernel
    assert selection.error is None
    assert selection.alternatives == ()
    assert selection.chosen is not None
    assert {check.verdict for check in selection.chosen.checks} <= {PASS}


def test_the_lists_are_all_those_of_the_table() -> None:
    assert set(LISTS) == set(TABLE["families"])


def test_every_candidate_is_evaluated_and_those_behind_the_choice_are_marked() -> None:
    selection = select("fp8_w8a8", 89)
    assert [candidate.considered for candidate in selection.candidates] == [
        True, True, False, False, False, False, False]
    behind = {candidate.kernel: candidate.verdict for candidate in selection.candidates[2:]}
    assert behind == {
        "B12xTensorFP8ScaledMMLinearKernel": FAIL, "PerTensorTorchFP8ScaledMMLinearKernel": FAIL,
        "ChannelWiseTorchFP8ScaledMMLinearKernel": PASS, "MarlinFP8ScaledMMLinearKernel": PASS,
        "HummingFP8ScaledMMLinearKernel": PASS}
    assert rejected(selection) == {
        "FlashInferFP8ScaledMMLinearKernel":
            "FlashInferFP8ScaledMMLinearKernel requires compute capability 100 and above.."}


def test_group_32_on_9_0_is_humming_because_machete_refuses() -> None:
    """Row llama8b/gptq4-g32/90; the reason is MacheteLinearKernel.can_implement's."""
    selection = select("mixed_precision", 90, quant__group_size=32)
    assert selection.kernel == "HummingLinearKernel"
    assert list(rejected(selection)) == ["CutlassW4A8LinearKernel", "MacheteLinearKernel"]
    assert rejected(selection)["MacheteLinearKernel"] == (
        " MacheteLinearKernel cannot implement due to: Group size (32) not supported by Machete, "
        "supported group sizes are: [-1, 64, 128]")


def test_machete_s_shape_words() -> None:
    """utils/machete_utils.py:check_machete_supports_shape."""
    reason = {
        "layer__k": "Input features size must be divisible by 64",
        "layer__n": "Output features size must be divisible by 128"}
    for name, words in reason.items():
        selection = select("mixed_precision", 90, **{name: 4096 + 32})
        assert rejected(selection)["MacheteLinearKernel"] == (
            f" MacheteLinearKernel cannot implement due to: {words}")


def test_machete_s_first_failure_is_the_one_reported() -> None:
    selection = select("mixed_precision", 90, quant__group_size=32, layer__k=4096 + 32)
    machete = next(c for c in selection.candidates if c.kernel == "MacheteLinearKernel")
    assert [check.text for check in machete.checks if check.verdict == FAIL] == [
        "quant.group_size is 32; must be one of -1, 64, 128",
        "layer.k is 4128; must be a multiple of 64 (remainder 32)"]
    assert machete.decisive is not None
    assert machete.decisive.fact == "quant.group_size"


# --linear-backend.


def test_a_backend_keeps_its_own_kernels_only() -> None:
    """_filter_kernels_by_backend; row llama8b/fp8-block128/89/linear_backend=triton."""
    selection = select("fp8_block_w8a8", 89, flag__linear_backend="triton")
    assert [c.kernel for c in selection.candidates] == ["TritonFp8BlockScaledMMKernel"]
    assert selection.kernel == "TritonFp8BlockScaledMMKernel"
    assert selection.steps == (Step("Filtered", "only TritonFp8BlockScaledMMKernel",
                                    "--linear-backend triton", f"{INIT}:_LINEAR_BACKEND_KERNEL_MAP"
                                    ),)


def test_a_backend_keeps_the_list_s_order() -> None:
    selection = select("fp8_w8a8", 89, flag__linear_backend="torch")
    assert [c.kernel for c in selection.candidates] == [
        "PerTensorTorchFP8ScaledMMLinearKernel", "ChannelWiseTorchFP8ScaledMMLinearKernel"]
    assert selection.kernel == "ChannelWiseTorchFP8ScaledMMLinearKernel"


def test_a_backend_without_a_kernel_here_leaves_the_whole_list() -> None:
    """_resolve_backend_kernels: the unfiltered list with a warning, instead of failing."""
    selection = select("fp8_w8a8", 89, flag__linear_backend="machete")
    assert [c.kernel for c in selection.candidates] == LISTS["fp8_w8a8"]
    assert selection.kernel == "CutlassFP8ScaledMMLinearKernel"
    assert [(step.kind, step.what) for step in selection.steps] == [("Filtered", "nothing")]
    assert "machete has no kernel for this layer type" in selection.steps[0].because


def test_promotion_comes_before_the_filter() -> None:
    """_resolve_backend_kernels: prioritize_humming, then the filter."""
    selection = select("mixed_precision", 90, flag__linear_backend="marlin")
    assert [step.kind for step in selection.steps] == ["Reordered", "Filtered"]
    assert selection.kernel == "MarlinLinearKernel"


@pytest.mark.parametrize("backend, capability, message", [
    ("machete", 80, "MacheteLinearKernel requires capability 90, current compute  capability is "
                    "80"),
    ("cutlass", 80, "CutlassW4A8LinearKernel requires capability 90, current compute  capability "
                    "is 80"),
    ("conch", 100, " ConchLinearKernel cannot implement due to: conch-triton-kernels is not "
                   "installed, please install it via `pip install conch-triton-kernels` and try "
                   "again!"),
    ("exllama", 90, " ExllamaLinearKernel cannot implement due to: Exllama only supports float16 "
                    "activations")])
def test_a_backend_whose_kernels_all_fail_is_an_error(
    backend: str, capability: int, message: str
) -> None:
    """Rows llama8b/awq4-g128/CAPABILITY/linear_backend=BACKEND."""
    selection = select("mixed_precision", capability, flag__linear_backend=backend,
                       quant__weight_type="uint4", quant__zero_points=True)
    assert selection.kernel is None
    assert selection.error == ("Failed to find a kernel that can implement the WNA16 linear layer. "
                               f"Reasons: \n{message}")


def test_mxfp4_words_every_kernel() -> None:
    """Row llama8b/ct-mxfp4a16/70."""
    assert select("mxfp4", 70).error == (
        "Failed to find a kernel that can implement the MXFP4 linear layer. Reasons: \n"
        "FlashInferMxFp4LinearKernel: FlashInfer + >=sm_100 (Blackwell) required\n"
        "MarlinMxFp4LinearKernel: Marlin FP4 not available\n"
        "HummingMxFp4LinearKernel: Humming only supported on SM75+\n"
        "B12xMxFp4LinearKernel: B12X MXFP4 kernels require a Blackwell 12x device\n"
        "EmulationMxfp4LinearKernel: amd-quark package not available")


@pytest.mark.parametrize("family, backend, capability, message", [
    ("fp8_w8a8", "b12x", 90, "B12xTensorFP8ScaledMMLinearKernel b12x tensor FP8 kernels require a "
                             "Blackwell 12x device."),
    ("fp8_block_w8a8", "b12x", 120, "B12xFp8BlockScaledMMKernel Install the B12X backend with "
                                    "`pip install vllm[b12x]`."),
    ("fp8_block_w8a8", "torch", 80, "BlockWiseTorchFP8ScaledMMLinearKernel DeepSeek-style (1x128, "
                                    "128x128) block scaling on CUDA requires compute capability "
                                    "90 (Hopper).."),
    ("fp8_block_w8a8", "flashinfer_cutlass", 120,
     "FlashInferFp8DeepGEMMDynamicBlockScaledKernel base is not supported due to FlashInfer "
     "block-scale FP8 GEMM is not available..")])
def test_scaled_mm_errors_have_their_own_words(
    family: str, backend: str, capability: int, message: str
) -> None:
    """Rows llama8b/{fp8-dynamic,fp8-block128}/CAPABILITY/linear_backend=BACKEND."""
    selection = select(family, capability, flag__linear_backend=backend)
    assert selection.error == ("Failed to find a kernel that can implement the ScaledMM linear "
                               f"layer. Reasons: \n{message}")


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
            candidates.walk(TABLE, family, facts(family, capability, **changes))
