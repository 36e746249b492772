"""Weights as loaded, against "Model loading took" of public logs and the engine's own load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from known_models import model

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from allocator_check import load_events, simulated
from memory_truth import model_config, truth_rows
from quantplan.dispatch.facts import Checkpoint
from quantplan.dispatch.families import model_structure
from quantplan.dispatch.formats import as_format
from quantplan.planner.weights import Weights, weigh
from quantplan.tables.errors import UsageError

from quantplan import budget, reports

GIB = 2**30
DENSE = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM",
         "GemmaForCausalLM", "GraniteForCausalLM", "Exaone4ForCausalLM", "PhiForCausalLM",
         "Phi3ForCausalLM")
SPARSE = ("MixtralForCausalLM", "Qwen3MoeForCausalLM")


def loaded(
    checkpoint: Checkpoint, gpu: str = "h100", pp: int = 1, **options: Any
) -> Weights:
    """Return the weights of a deployment as loaded."""
    return budget(dict(checkpoint.config), gpu=gpu, pp=pp, **options).weights


def lines(weights: Weights) -> dict[str, int]:
    """Return the bytes of each line."""
    return {line.name: line.bytes for line in weights.lines}


def known(row: dict[str, Any]) -> bool:
    """Return whether the row prints the weights of a vLLM model of these classes."""
    config = model_config(row["model"])
    if config is None or row["engine"] != "vllm" or "weights_gib" not in row["printed"]:
        return False
    structure = model_structure(Checkpoint("m", "mapping", config), weighed=True)
    return structure.complete and structure.architecture in DENSE + SPARSE


@pytest.mark.parametrize("row", [row for row in truth_rows() if known(row)],
                         ids=lambda row: f"{row['id']}-{'fitted' if row['fitted'] else 'held-out'}")
def test_model_loading_took_what_the_log_says(row: dict[str, Any]) -> None:
    asked, config = row["asked"], model_config(row["model"])
    assert config is not None
    quantization = None if "quantization_config" in config else asked.get("quantization")
    found = loaded(Checkpoint(row["model"], "mapping", config), pp=asked.get("pp", 1),
                   tp=asked.get("tp", 1), dtype=asked.get("dtype") or "auto",
                   quantization=quantization)
    printed = row["printed"]["weights_gib"]
    dense = config["architectures"][0] in DENSE
    assert found.bytes / GIB == pytest.approx(printed, abs=0.01 if dense else 0.005 * printed)


# The whole load of the engine, its intermediate tensors included, through the same allocator.
@pytest.mark.parametrize("recorded, form, gpu, tp, close_bytes", [
    ("Llama-3.1-8B bf16", None, "h100", 1, 1 << 17),
    ("Llama-3.1-8B FP8 per tensor", "fp8", "h100", 1, 1 << 17),
    ("Llama-3.1-8B FP8 channel", "ct-fp8-dynamic", "h100", 1, 1 << 17),
    ("Llama-3.1-8B W4A16 AWQ Machete", "awq", "h100", 1, 16 << 20),
    ("Llama-3.1-8B W4A16 GPTQ Marlin", "gptq", "a100-80g", 1, 16 << 20),
    ("Llama-3.3-70B, rank 0 of TP 8", None, "h100", 8, 1 << 20),
    ("Llama-3.3-70B FP8 channel, rank 0 of TP 4", "ct-fp8-dynamic", "h100", 4, 1 << 20),
])
def test_the_engines_own_load_comes_to_the_same(
    recorded: str, form: str | None, gpu: str, tp: int, close_bytes: int
) -> None:
    plain = model("llama-3.3-70b" if "70B" in recorded else "llama-3.1-8b")
    found = loaded(as_format(plain, form) if form else plain, gpu, tp=tp)
    events = next(row["events"] for row in load_events() if row["id"] == recorded)
    assert abs(found.bytes - simulated(events)["allocated_bytes"]) <= close_bytes


def test_lines_of_a_16_bit_model() -> None:
    found = lines(loaded(model("llama-3.1-8b")))
    assert found["rotary tables"] == 131072 * 128 * 2
    assert found["attention scales"] == 32 * 16
    assert "kernel repacking" not in found
    # All tensors fill whole blocks but norms (8 KiB fit 512 bytes) and 4-byte scales.
    assert found["allocator rounding"] == 32 * 4 * (512 - 4)


def test_marlin_expands_block_scales_and_machete_unpacks_zero_points() -> None:
    linear = 6_979_321_856
    block = lines(loaded(as_format(model("llama-3.1-8b"), "fp8-block"), "a100-80g"))
    assert block["kernel repacking"] == linear // 128 * 2 - linear // 128**2 * 4
    awq = lines(loaded(as_format(model("llama-3.1-8b"), "awq")))
    assert awq["kernel repacking"] == linear // 128 * 2 - linear // 128 // 2
    gptq = lines(loaded(as_format(model("llama-3.1-8b"), "gptq"), "a100-80g"))
    assert gptq["kernel repacking"] == -linear // 128 // 2


def test_a_budget_of_freed_tensors_follows_the_schema() -> None:
    schema = json.loads((Path(reports.__file__).parent / "schema" / "budget.v2.json").read_text())
    config = dict(as_format(model("llama-3.1-8b"), "gptq").config)
    found = budget(config, gpu="a100-80g", pp=2).to_dict()
    jsonschema.validate(found, schema)
    freed = next(line for line in found["weights"]["lines"] if line["name"] == "kernel repacking")
    assert freed["bytes"] < 0
    assert sum(line["bytes"] for line in found["weights"]["lines"]) == max(
        found["weights"]["stage_bytes"])


def test_ranks_of_a_pipeline_differ() -> None:
    # mem-027, vLLM 0.19.0: the heaviest of four ranks prints 4.26 GiB.
    found = loaded(model("llama-3.1-8b"), pp=4)
    assert found.bytes == max(found.stage_bytes)
    assert [round(size / GIB, 2) for size in found.stage_bytes] == [4.26, 3.28, 3.28, 4.26]
    assert [note.message for note in found.notes] == [
        "weights of the 4 pipeline stages: 4.26, 3.28, 3.28, 4.26 GiB; counted is the heaviest"]


def test_a_partition_moves_layers() -> None:
    found = loaded(model("llama-3.1-8b"), pp=2, env={"VLLM_PP_LAYER_PARTITION": "20,12"})
    assert found.stage_bytes[0] > found.stage_bytes[1]
    with pytest.raises(UsageError, match="VLLM_PP_LAYER_PARTITION"):
        loaded(model("llama-3.1-8b"), pp=2, env={"VLLM_PP_LAYER_PARTITION": "20,13"})


def test_what_is_not_known_of_loading_is_noted() -> None:
    spiral = model("llama-3.1-8b", rope_scaling={"rope_type": "spiral"})
    found = loaded(spiral)
    assert [note.id for note in found.notes] == ["rotary-table-not-known"]
    assert "rotary tables" not in lines(found)


def test_a_kernel_without_a_row_is_named() -> None:
    found = loaded(as_format(model("llama-3.1-8b"), "mxfp8"), "b200",
                   linear_backend="flashinfer_trtllm")
    assert [note.message for note in found.notes] == [
        "what FlashInferTrtllmMxfp8LinearKernel keeps of a layer is not known: its tensors are "
        "counted as they were created"]


def test_layers_built_without_a_quantization_stay_plain() -> None:
    """Where no kernels are known, 48 convolutions of 10240 outputs and 4 inputs, no whole group of
    16, keep 16 bits (vLLM 0.32.0 mamba/gdn/qwen_gdn_linear_attn.py: conv1d has no quant_config)."""
    config = model_config("Inferact/Qwen3.8-27B-NVFP4")
    assert config is not None
    checkpoint = Checkpoint("m", "mapping", config)
    found = weigh(checkpoint, model_structure(checkpoint, weighed=True))
    assert f"{48 * 10240 * 4:,} x 16 bits" in found.lines[0].formula


@pytest.mark.parametrize(("name", "options", "wanted"), [
    ("openai/gpt-oss-120b", {"moe_backend": "marlin"}, 65.9651),
    ("openai/gpt-oss-120b", {"engine_version": "0.19.0", "assume_nearest": True}, 64.38),
    ("openai/gpt-oss-20b", {"engine_version": "0.19.0", "assume_nearest": True}, 13.47)])
def test_experts_weigh_what_their_backend_keeps(
    name: str, options: dict[str, Any], wanted: float
) -> None:
    """Public logs of H100, as in vllm-project/vllm issue 23278 and llm-d-planner
    docs/empirical-vllm-memory-results: Marlin pads experts; Triton, up to 0.24, kept the scales
    that it had swizzled."""
    config = model_config(name)
    assert config is not None
    assert loaded(Checkpoint(name, "mapping", config), **options).bytes / GIB == pytest.approx(
        wanted, abs=0.01)


def test_triton_experts_of_hopper_are_padded_scales_and_wide_biases() -> None:
    """vLLM 0.32.0 on capability 9.0: 90 groups of scales become 92, 5760 and 2880 outputs fill
    tiles of 256, biases turn to 32 bits (mxfp4_utils.py:_swizzle_mxfp4, oracle/mxfp4.py)."""
    config = model_config("openai/gpt-oss-20b")
    assert config is not None
    scales = (5888 + 3072) * 92 - (5760 + 2880) * 90
    assert lines(loaded(Checkpoint("m", "mapping", config)))["kernel repacking"] == (
        24 * 32 * (scales + 2 * (5760 + 2880)))


def test_humming_experts_are_padded_to_256_outputs_and_128_inputs() -> None:
    """vLLM 0.32.0 humming/moe.py:_prepare_and_transform_sublayer: 5760 x 2880 become 5888 x 2944,
    2880 x 2880 become 3072 x 2944; a byte is two weights, or the scale of 32."""
    config = model_config("openai/gpt-oss-20b")
    assert config is not None
    weights = (5888 + 3072) * 2944 - (5760 + 2880) * 2880
    found = loaded(Checkpoint("m", "mapping", config), moe_backend="humming")
    assert lines(found)["kernel repacking"] == 24 * 32 * (
        weights // 2 + weights // 32 + 2 * (5888 + 3072 - 5760 - 2880))
    assert not [note for note in found.notes if note.id == "kernel-memory-not-known"]
