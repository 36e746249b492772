"""Every kind of difference between our answer and an engine's, with the reasons of both sides.

The engine's answers are ours turned into its form, and then changed in one place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import ask
from engine_answers import Answer, as_engine

from quantplan.oracle.compare import Difference, differences, starred

QKV = "model.layers.*.self_attn.qkv_proj"

def engine_rows(answer: Answer, path: str) -> list[Answer]:
    return [row for row in answer["layers"] if starred(row["path"])[0] == path]


@pytest.mark.parametrize("quant, capability", [
    ("fp8-static", "8.0"), ("awq4-g128", "9.0"), ("fp8-block-static", "9.0"), ("awq8", "8.9")])
def test_the_same_answer_has_no_difference(quant: str, capability: str) -> None:
    ours = ask(quant, capability).to_dict()
    assert differences(ours, as_engine(ours)) == []


def compared(quant: str, capability: str, change: Callable[[Answer], None]) -> list[Difference]:
    ours = ask(quant, capability).to_dict()
    engines = as_engine(ours)
    change(engines)
    return differences(ours, engines)


def test_another_kernel_is_told_with_both_reasons() -> None:
    """On 8.9 we choose Cutlass and turn FlashInfer down; this engine does the opposite."""
    def change(engines: Answer) -> None:
        for row in engine_rows(engines, QKV):
            row["kernel"] = "FlashInferFP8ScaledMMLinearKernel"
            row["rejected"] = [["CutlassFP8ScaledMMLinearKernel", "not built"]]

    (found,) = compared("fp8-static", "8.9", change)
    assert found == Difference(
        QKV, "kernel", "CutlassFP8ScaledMMLinearKernel", "FlashInferFP8ScaledMMLinearKernel",
        "gpu.capability is 8.9; must be at least 10.0", found.our_source, "not built", (0, 1))
    assert found.our_source is not None
    assert found.our_source.startswith("model_executor/kernels/linear/scaled_mm/flashinfer.py:")


def test_a_kernel_behind_our_choice_could_serve_too() -> None:
    def change(engines: Answer) -> None:
        engine_rows(engines, QKV)[1]["kernel"] = "MarlinFP8ScaledMMLinearKernel"

    (found,) = compared("fp8-static", "8.9", change)
    assert found.our_reason == ("MarlinFP8ScaledMMLinearKernel could serve the layer; "
                                "CutlassFP8ScaledMMLinearKernel comes first")
    assert (found.engine_reason, found.indices) == (None, (1,))


def test_a_kernel_that_we_do_not_list_is_named() -> None:
    def change(engines: Answer) -> None:
        engine_rows(engines, QKV)[0]["kernel"] = "NewKernel"

    (found,) = compared("fp8-static", "8.9", change)
    assert found.our_reason == "NewKernel is not in our list"


def test_the_reason_against_a_kernel_must_be_the_engines() -> None:
    def change(engines: Answer) -> None:
        for row in engine_rows(engines, QKV):
            row["rejected"] = [[kernel, "another reason"] for kernel, _ in row["rejected"]]

    (found,) = compared("fp8-static", "8.9", change)
    assert (found.field, found.engines) == (
        "reason of FlashInferFP8ScaledMMLinearKernel", "another reason")


def test_a_kernel_that_the_engine_never_asked_has_no_reason_to_compare() -> None:
    def change(engines: Answer) -> None:
        for row in engine_rows(engines, QKV):
            row["rejected"] = [[kernel, None] for kernel, _ in row["rejected"]]

    assert compared("fp8-static", "8.9", change) == []


@pytest.mark.parametrize("field, value", [
    ("n", 6145), ("method", "Fp8OnlineLinearMethod"), ("module", "ReplicatedLinear"),
    ("family", "fp8_block_w8a8"), ("mode", "W8A16_fp8")])
def test_every_field_of_a_layer_is_compared(field: str, value: Any) -> None:
    def change(engines: Answer) -> None:
        for row in engine_rows(engines, QKV):
            row[field] = value

    (found,) = compared("fp8-static", "8.9", change)
    assert (found.where, found.field, found.engines, found.indices) == (QKV, field, value, (0, 1))


def test_a_mode_that_the_engine_does_not_tell_is_no_difference() -> None:
    def change(engines: Answer) -> None:
        for row in engines["layers"]:
            row["mode"] = None

    assert compared("awq4-g128", "8.0", change) == []


def test_layers_on_one_side_only_are_differences() -> None:
    def change(engines: Answer) -> None:
        engines["layers"] = [row for row in engines["layers"] if row["path"] != "lm_head"]
        engines["layers"].append({"path": "model.extra", "module": "ReplicatedLinear"})

    assert [(f.where, f.field, f.ours, f.engines)
            for f in compared("fp8-static", "8.9", change)] == [
        ("model.extra", "layer", None, "ReplicatedLinear"),
        ("lm_head", "layer", "ParallelLMHead", None)]


@pytest.mark.parametrize("field", ["method", "config_class", "min_capability", "dtype"])
def test_the_model_as_a_whole_is_compared(field: str) -> None:
    (found,) = compared("fp8-static", "8.9", lambda engines: engines.update({field: "other"}))
    assert (found.where, found.field, found.engines) == ("", field, "other")


def test_a_dtype_that_the_engines_worker_refuses_must_be_told() -> None:
    (found,) = compared("fp8-static", "8.9",
                        lambda engines: engines.update(dtype_refused="Bfloat16 is only ..."))
    assert (found.field, found.engines) == ("dtype refused", "Bfloat16 is only ...")
    ours = ask("fp8-static", "7.5", dtype="bfloat16").to_dict()
    engines = {**as_engine(ours), "outcome": "ok", "error": None}
    assert differences(ours, {**engines, "dtype_refused": ours["error"]["message"]}) == []


def test_a_refusal_on_one_side_is_told_in_its_words() -> None:
    def change(engines: Answer) -> None:
        engines |= {"outcome": "ok", "error": None}

    (found,) = compared("awq8", "8.9", change)
    assert (found.field, found.ours, found.engines) == ("outcome", "error", "ok")
    assert str(found.our_reason).startswith("ValidationError: Unsupported num_bits = 8.")
    assert found.our_source == "model_executor/layers/quantization/auto_awq.py:AutoAWQConfig"


@pytest.mark.parametrize("field", ["type", "message"])
def test_a_refusal_must_be_in_the_engines_words(field: str) -> None:
    (found,) = compared("awq8", "8.9", lambda engines: engines["error"].update({field: "other"}))
    assert (found.field, found.engines) == (f"error {field}", "other")


def test_a_set_in_a_message_has_no_order() -> None:
    ours = ask("awq8", "8.9").to_dict()
    ours["error"]["message"] = "only support {'a', 'b b', 'c'}."
    engines = as_engine(ours)
    engines["error"]["message"] = "only support {'c', 'a', 'b b'}."
    assert differences(ours, engines) == []
    engines["error"]["message"] = "only support {'c', 'a'}."
    assert len(differences(ours, engines)) == 1


def test_a_refusal_names_the_engines_layer() -> None:
    def change(engines: Answer) -> None:
        engines["error"]["layer"] = "model.layers.0.mlp.down_proj"

    (found,) = compared("gptq4-g256", "8.0", change)
    assert (found.field, found.ours, found.engines) == (
        "error layer", "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.down_proj")


def test_experts_are_compared_by_class_and_backend() -> None:
    ours = ask("fp8-static", "8.9").to_dict()
    engines = as_engine(ours)
    for row in engine_rows(engines, QKV):
        row["experts"] = {"class": "TritonExperts", "backend": "TRITON",
                          "rejected": [["MarlinExperts", "no device"]]}
    for row in ours["layers"]:
        row["experts"] = {"class": "MarlinExperts", "backend": "TRITON"}
    (found,) = differences(ours, engines)
    assert (found.field, found.ours, found.engines, found.engine_reason) == (
        "experts class", "MarlinExperts", "TritonExperts", "no device")


@pytest.mark.parametrize("path, expected", [
    ("lm_head", ("lm_head", None)),
    ("model.layers.11.mlp.experts", ("model.layers.*.mlp.experts", 11)),
    ("model.layers.3.mlp.experts.5.up", ("model.layers.*.mlp.experts.5.up", 3)),
    ("visual.merger.0", ("visual.merger.*", 0))])
def test_paths_with_stars(path: str, expected: tuple[str, int | None]) -> None:
    assert starred(path) == expected
