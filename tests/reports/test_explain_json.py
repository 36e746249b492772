"""`explain` as JSON: every answer follows the shipped schema and says what the trace says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, QWEN_72B, ask, ask_row, golden_rows, quantization
from quantplan.dispatch.trace import STAGES
from quantplan.reports import explain_view
from quantplan.tables.gpu_rows import lookup_key

SCHEMA = json.loads((Path(explain_view.__file__).parent / "schema" / "explain.v1.json")
                    .read_text(encoding="utf-8"))
ROWS = list(golden_rows().values())
SAMPLE = ROWS[:: max(1, len(ROWS) // 150)]


def problems(view: dict[str, Any]) -> list[str]:
    """Return where a view breaks the schema."""
    return [f"{list(error.path)}: {error.message}"
            for error in Draft202012Validator(SCHEMA).iter_errors(view)]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == explain_view.SCHEMA == "quantplan/explain/1"


def test_the_schema_s_stages_are_the_resolver_s() -> None:
    assert tuple(SCHEMA["$defs"]["stage"]["enum"]) == STAGES


def test_every_object_of_the_schema_is_closed() -> None:
    """A field that no one documented would be a contract by accident."""
    def check(node: Any, where: str) -> None:
        if isinstance(node, dict):
            if "properties" in node:
                assert node.get("additionalProperties") is False, where
                assert set(node["required"]) <= set(node["properties"]), where
            for name, item in node.items():
                check(item, f"{where}.{name}")
        elif isinstance(node, list):
            for index, item in enumerate(node):
                check(item, f"{where}[{index}]")

    check(SCHEMA, "schema")


@pytest.mark.parametrize("start", range(10))
def test_golden_answers_follow_the_schema_and_survive_json(start: int) -> None:
    for row in SAMPLE[start::10]:
        view = ask_row(row).to_dict()
        assert problems(view) == [], row["id"]
        assert json.loads(json.dumps(view)) == view, row["id"]


@pytest.mark.parametrize("options", [
    {"libs": {"flashinfer": None}}, {"gpu": "a100-80g"}, {"tp": 2, "model": QWEN_72B},
    {"env": {"VLLM_TEST_FORCE_FP8_MARLIN": "1"}}, {"kv_cache_dtype": "fp8"},
    {"linear_backend": "machete"}, {"tensors": {"lm_head.weight": "BF16"}}, {"tp": 3},
    {"linear_backend": "b12x"}, {"dtype": "float32"}])
def test_other_answers_follow_the_schema(options: dict[str, Any]) -> None:
    view = ask("fp8-static", "10.0", **options).to_dict()
    assert problems(view) == []
    assert json.loads(json.dumps(view)) == view


@pytest.mark.parametrize("change", [
    lambda view: view.update(outcome="maybe"), lambda view: view.update(extra=1),
    lambda view: view["layers"][1].update(n="6144"), lambda view: view["findings"].append({}),
    lambda view: view["gpu"].update(capability=90), lambda view: view.pop("starts")])
def test_a_broken_view_breaks_the_schema(change: Callable[[dict[str, Any]], Any]) -> None:
    view = ask("fp8-static").to_dict()
    change(view)
    assert problems(view) != []


# What is in it.


def test_the_question_is_repeated() -> None:
    view = ask("fp8-static", tp=2, dtype="half", kv_cache_dtype="fp8", linear_backend="CUTLASS",
               env={"VLLM_USE_DEEP_GEMM": "0"}, libs={"flashinfer": False}).to_dict()
    assert view["deployment"] == {
        "tp": 2, "dtype": "float16", "dtype_requested": "half", "quantization": None,
        "quantization_config": {}, "kv_cache_dtype": "fp8", "linear_backend": "cutlass",
        "moe_backend": "auto", "expert_parallel": False, "dp": 1, "attention_backend": None,
        "attention_config": {}, "mm_encoder_attn_backend": None, "mm_encoder_attn_dtype": None,
        "kv_cache_dtype_skip_layers": [], "block_size": None, "fp8_gemm_backend": "auto",
        "fp4_gemm_backend": "auto", "prefill_attention_backend": None,
        "decode_attention_backend": None, "mm_attention_backend": None, "page_size": None,
        "linear_backend_per_quant": {},
        "env": {"VLLM_USE_DEEP_GEMM": "0"}, "libs": {"flashinfer": False}}
    assert view["engine"] == {"name": "vllm", "version": "0.32.0"}
    assert view["model"] == {"name": "llama", "origin": "mapping", "revision": None,
                             "fetched_bytes": 0}
    assert view["gpu"] == {"name": "Emulated GPU 9.0", "id": None, "capability": "9.0",
                           "sm_count": None, "memory_bytes": None, "memory_kind": None,
                           "origin": "capability"}


def test_a_gpu_by_name() -> None:
    gpu = ask("fp8-static", gpu="4090").to_dict()["gpu"]
    assert (gpu["id"], gpu["capability"], gpu["sm_count"]) == ("rtx-4090", "8.9", 128)
    assert lookup_key(gpu["name"]) == "rtx4090"


def test_layers_that_behave_alike_share_a_row() -> None:
    view = ask("fp8-static", model={**LLAMA, "num_hidden_layers": 32}).to_dict()
    assert [(row["path"], row["indices"]) for row in view["layers"]] == [
        ("model.embed_tokens", []),
        *((f"model.layers.*.{name}", list(range(32))) for name in (
            "self_attn.qkv_proj", "self_attn.o_proj", "self_attn.attn", "mlp.gate_up_proj",
            "mlp.down_proj")),
        ("lm_head", [])]


def test_layers_that_differ_have_rows_of_their_own() -> None:
    """Row llama8b/fp8-ignore-lm: one down_proj of two is named."""
    rows = [row for row in ask("fp8-ignore-lm").to_dict()["layers"]
            if row["path"].endswith("down_proj")]
    assert [(row["indices"], row["kernel"], row["method"]) for row in rows] == [
        ([0], None, "UnquantizedLinearMethod"),
        ([1], "CutlassFP8ScaledMMLinearKernel", "Fp8LinearMethod")]


def test_a_layer_row_in_full() -> None:
    row = ask("fp8-static", "8.0").to_dict()["layers"][1]
    assert {name: row[name] for name in ("path", "module", "n", "k", "method", "scheme", "family",
                                         "kernel", "mode", "act")} == {
        "path": "model.layers.*.self_attn.qkv_proj", "module": "QKVParallelLinear", "n": 6144,
        "k": 4096, "method": "Fp8LinearMethod", "scheme": None, "family": "fp8_w8a8",
        "kernel": "MarlinFP8ScaledMMLinearKernel", "mode": "W8A16_fp8", "act": "none"}
    assert row["rejected"][1] == {
        "kernel": "CutlassFP8ScaledMMLinearKernel",
        "reason": "gpu.capability is 8.0; must be at least 8.9",
        "engine_reason": "CutlassFP8ScaledMMLinearKernel CUTLASS FP8 kernels not available.",
        "source": "model_executor/kernels/linear/scaled_mm/cutlass.py:"
                  "CutlassFP8ScaledMMLinearKernel.is_supported"}
    assert [c["kernel"] for c in row["candidates"] if c["considered"]] == [
        "FlashInferFP8ScaledMMLinearKernel", "CutlassFP8ScaledMMLinearKernel",
        "B12xTensorFP8ScaledMMLinearKernel", "PerTensorTorchFP8ScaledMMLinearKernel",
        "ChannelWiseTorchFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel"]


def test_an_attention_row_has_its_own_fields() -> None:
    row = next(row for row in ask("ct-fp8-kv").to_dict()["layers"] if row["module"] == "Attention")
    assert {name: row[name] for name in ("n", "k", "kernel", "family", "mode", "attn_backend",
                                         "kv_cache_dtype", "method")} == {
        "n": None, "k": None, "kernel": None, "family": None, "mode": None,
        "attn_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8",
        "method": "CompressedTensorsKVCacheMethod"}


def test_an_error_has_its_candidates() -> None:
    """Row llama8b/fp8-dynamic/90/linear_backend=b12x."""
    error = ask("fp8-dynamic", linear_backend="b12x").to_dict()["error"]
    assert (error["stage"], error["type"], error["layer"]) == (
        "kernel selection", "ValueError", "model.layers.0.self_attn.qkv_proj")
    assert [c["kernel"] for c in error["candidates"]] == ["B12xTensorFP8ScaledMMLinearKernel"]
    assert error["rejected"][0]["reason"] == "gpu.family is 9.x; must be 12.x"


@pytest.mark.parametrize("quant, capability, options, outcome, starting", [
    ("fp8-static", "9.0", {}, "ok", "yes"), ("fp8-static", "7.0", {}, "error", "no"),
    ("ct-w8a8-int8", "12.0", {}, "ok", "no"),
    ("fp8-static", "10.0", {"libs": {"flashinfer": None}}, "conditional", "conditional"),
    ("ct-w8a8-int8", "10.0", {"libs": {"flashinfer": None}}, "conditional", "no")])
def test_outcome_and_starts(
    quant: str, capability: str, options: dict[str, Any], outcome: str, starting: str
) -> None:
    view = ask(quant, capability, **options).to_dict()
    assert (view["outcome"], view["starts"]) == (outcome, starting)


def test_alternatives_name_the_fact() -> None:
    row = ask("fp8-static", "10.0", libs={"flashinfer": None}).to_dict()["layers"][1]
    assert row["kernel"] == "CutlassFP8ScaledMMLinearKernel"
    assert row["alternatives"] == [
        {"kernel": "FlashInferFP8ScaledMMLinearKernel", "if_facts": ["lib.flashinfer"]}]


def test_a_view_is_made_anew_each_time() -> None:
    """Changing what one call returned changes no other answer."""
    answer = ask("fp8-static")
    first = answer.to_dict()
    first["layers"].clear()
    first["deployment"]["env"]["x"] = "y"
    assert answer.to_dict()["layers"]
    assert answer.to_dict()["deployment"]["env"] == {}


def test_an_odd_name_survives_json() -> None:
    view = ask(quantization("fp8-dynamic"), model={**LLAMA, "model_type": 'll"a\u2028ma'}).to_dict()
    assert json.loads(json.dumps(view, ensure_ascii=False))["model"]["name"] == 'll"a\u2028ma'
