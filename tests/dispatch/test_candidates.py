"""The candidate lists of vLLM 0.32.0: their order, what reorders and filters them, who wins and in
which of the engine's words the others are turned down."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from candidate_lists import LISTS, TABLE, facts, rejected, select
from quantplan.dispatch.candidates import order
from quantplan.dispatch.predicates import FAIL, PASS
from quantplan.dispatch.trace import Step

INIT = "model_executor/kernels/linear/__init__.py"


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
