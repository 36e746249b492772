"""`explain` for a person: verdict first, reason second, layers third, depth on request."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import (
    FP8_PARTS,
    LLAMA,
    QWEN_72B,
    ask,
    ask_row,
    golden_rows,
    quantization,
    scheme,
    stored,
)
from quantplan.dispatch.answers import Answer
from quantplan.reports.explain_text import explain_text
from quantplan.reports.layer_names import layer_words
from quantplan.reports.verdict_text import why_mode
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.mode_rows import modes

from quantplan import Explanation, explain

LLAMA_8B = {**LLAMA, "num_hidden_layers": 32}


def text(answer: Explanation, **options: Any) -> str:
    trace, kernel = answer.trace, options.pop("why_not", None)
    found = Answer(trace.engine, trace.version, answer.gpu, trace)
    return explain_text((answer.checkpoint, answer.gpu, answer.deployment), [found],
                        why_not=[(trace.engine, kernel)] if kernel else (), **options)


def verdict(quant: Any, capability: str, **options: Any) -> list[str]:
    """Return the lines between the question and the next empty line, unindented."""
    block = text(ask(quant, capability, **options)).split("\n\n")[1]
    return [line.strip() for line in block.splitlines()]


# The whole text of one answer.


def test_fp8_on_8_6_in_full() -> None:
    assert text(ask("fp8-static", model=LLAMA_8B, gpu="3090")) == """\
llama on NVIDIA GeForce RTX 3090, compute capability 8.6, tp 1, bfloat16

  vLLM 0.32.0   starts   W8A16: weights FP8, activations 16-bit, because this GPU (8.6) has no \
FP8 tensor cores
                         Saves memory and bandwidth, not arithmetic.

  layer               count          N x K  kernel                         mode
  model.embed_tokens      1  128256 x 4096  unquantized                    W16A16
  self_attn.qkv_proj     32    6144 x 4096  MarlinFP8ScaledMMLinearKernel  W8A16_fp8
  self_attn.o_proj       32    4096 x 4096  MarlinFP8ScaledMMLinearKernel  W8A16_fp8
  self_attn.attn         32                 FLASH_ATTN                     KV bfloat16
  mlp.gate_up_proj       32   28672 x 4096  MarlinFP8ScaledMMLinearKernel  W8A16_fp8
  mlp.down_proj          32   4096 x 14336  MarlinFP8ScaledMMLinearKernel  W8A16_fp8
  lm_head                 1  128256 x 4096  unquantized                    W16A16
"""


def test_latent_attention_and_caches_have_no_weights() -> None:
    """GLM-5 without quantization: one mode, a KV dtype for the attention, none for the indexer's
    cache."""
    lines = text(explain("glm-5", engine_version="0.32.0", capability="9.0", tp=8)).splitlines()
    assert lines[2:4] == ["  vLLM 0.32.0   starts   W16A16: weights and activations 16-bit",
                          "                         Not quantized."]
    rows = {line.split()[0]: line.split()[1:] for line in lines[5:22] if line}
    assert rows["self_attn"] == ["78", "FLASH_ATTN_MLA_SPARSE", "KV", "bfloat16,", "prefill",
                                 "FlashAttnPrefillBackend"]
    assert rows["self_attn.indexer.k_cache"] == ["78", "DEEPSEEK_V32_INDEXER"]
    assert rows["mlp.gate"] == ["75", "256", "x", "6144", "unquantized", "W16A16"]


def test_a_state_has_no_mode() -> None:
    """Nemotron-H without quantization: nothing is built without a config, as there is none."""
    answer = text(explain("nemotron-h-56b", engine_version="0.32.0", capability="9.0"))
    assert "starts   W16A16: weights and activations 16-bit\n" in answer
    rows = {line.split()[0]: line.split()[1:] for line in answer.splitlines()[5:] if line}
    assert rows["mixer"] == ["54", "MAMBA2_ATTN"]


# The question.


def test_the_question_names_what_was_asked() -> None:
    answer = ask("fp8-static", "9.0", tp=2, dtype="half", kv_cache_dtype="fp8",
                 linear_backend="cutlass", quantization="fp8")
    assert text(answer).splitlines()[0] == (
        "llama on compute capability 9.0, tp 2, float16, --quantization fp8, "
        "--kv-cache-dtype fp8, --linear-backend cutlass")


# The verdict.

W8A16 = "vLLM 0.32.0   starts   W8A16: weights FP8, activations 16-bit"
W8A8 = "vLLM 0.32.0   starts   W8A8: weights FP8, activations FP8"
SAVES = "Saves memory and bandwidth, not arithmetic."
FP8_CORES = "FP8 tensor cores do the arithmetic."


@pytest.mark.parametrize("quant", ["fp8-static", "fp8-dynamic", "fp8-block128", "ct-fp8-dynamic",
                                   "ct-fp8-static", "ct-fp8-block"])
@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6"])
def test_fp8_below_8_9_says_why(quant: str, capability: str) -> None:
    reason = f"this GPU ({capability}) has no FP8 tensor cores"
    assert verdict(quant, capability) == [f"{W8A16}, because {reason}", SAVES]


@pytest.mark.parametrize("quant, capability", [
    ("fp8-static", "8.9"), ("fp8-dynamic", "8.9"), ("ct-fp8-dynamic", "8.9"), ("fp8-static", "9.0"),
    ("fp8-block128", "9.0"), ("fp8-dynamic", "10.0"), ("fp8-block128", "12.0")])
def test_fp8_from_8_9_computes_in_fp8(quant: str, capability: str) -> None:
    assert verdict(quant, capability) == [W8A8, FP8_CORES]


@pytest.mark.parametrize("quant", ["fp8-block128", "ct-fp8-block"])
def test_block_fp8_on_8_9_says_why_it_does_not(quant: str) -> None:
    assert verdict(quant, "8.9") == [
        f"{W8A16}, because the block-FP8 kernels ahead of Marlin in the list need 9.0 and this GPU "
        "is 8.9", SAVES]


@pytest.mark.parametrize("name, capability, line", [
    ("nvfp4", "8.0", "W4A16: weights NVFP4, activations 16-bit, because this GPU (8.0) has no FP4 "
     "tensor cores"),
    ("nvfp4", "9.0", "W4A16: weights NVFP4, activations 16-bit, because this GPU (9.0) has no FP4 "
     "tensor cores"),
    ("nvfp4", "10.0", "W4A4: weights NVFP4, activations NVFP4"),
    ("modelopt-nvfp4", "12.0", "W4A4: weights NVFP4, activations NVFP4"),
    ("nvfp4a16", "10.0", "W4A16: weights NVFP4, activations 16-bit, because the checkpoint "
     "quantizes weights only"),
    ("mxfp4", "8.0", "W4A16: weights MXFP4, activations 16-bit, because this GPU (8.0) has no FP4 "
     "tensor cores"),
    ("mxfp8", "9.0", "W8A16: weights MXFP8, activations 16-bit, because this GPU (9.0) has no "
     "tensor cores for MX scales")])
def test_small_floats_say_why(name: str, capability: str, line: str) -> None:
    """Humming calls every 4-bit weight W4A16; the words are those of the checkpoint's weights."""
    assert verdict(None, capability, as_format=name)[0] == f"vLLM 0.32.0   starts   {line}"


def test_a_forced_kernel_is_said_to_be_forced() -> None:
    answer = ask(None, "10.0", as_format="nvfp4a16")
    told = text(answer, why_not="MarlinNvFp4LinearKernel")
    assert ("it is not looked at: the engine forces FlashInferCuteDslNvFp4W4A16LinearKernel"
            in told)
    assert "Pinned: FlashInferCuteDslNvFp4W4A16LinearKernel" in text(answer, verbose=True)


@pytest.mark.parametrize("capability", ["8.6", "9.0"])
def test_a_weight_only_checkpoint_is_not_the_gpu_s_fault(capability: str) -> None:
    assert verdict("ct-fp8-w8a16", capability) == [
        f"{W8A16}, because the checkpoint quantizes weights only", SAVES]


@pytest.mark.parametrize("quant, capability, lines", [
    ("awq4-g128", "8.0", ["vLLM 0.32.0   starts   W4A16: weights 4-bit integers, activations "
                          "16-bit, because the checkpoint quantizes weights only", SAVES,
                          "MarlinLinearKernel is the first of its list to accept; not "
                          "MacheteLinearKernel: gpu.capability is 8.0; must be 9.0."]),
    ("gptq8-g128", "9.0", ["vLLM 0.32.0   starts   W8A16: weights 8-bit integers, activations "
                           "16-bit, because the checkpoint quantizes weights only", SAVES,
                           "MacheteLinearKernel is the first of its list to accept; not "
                           "CutlassW4A8LinearKernel: quant.act_type is bfloat16; must be "
                           "float8_e4m3fn."]),
    ("ct-w8a8-int8", "8.0", ["vLLM 0.32.0   starts   W8A8: weights INT8, activations INT8",
                             "INT8 tensor cores do the arithmetic."]),
    (None, "9.0", ["vLLM 0.32.0   starts   W16A16: weights and activations 16-bit",
                   "Not quantized."])])
def test_other_modes(quant: str | None, capability: str, lines: list[str]) -> None:
    assert verdict(quant, capability) == lines


def test_several_modes_are_told_the_heaviest_first() -> None:
    """Row llama8b/ct-mixed/90: the MLP's 4-bit weights outnumber attention's."""
    lines = verdict("ct-mixed", "9.0")
    told = [line.split(":")[0].split()[-1] for line in lines if ": weights" in line]
    assert told == ["W4A16", "W8A8"]


def test_a_refusal_names_the_stage_then_the_engine_s_words() -> None:
    blocks = text(ask("fp8-static", "7.0")).split("\n\n")
    assert blocks[1] == "  vLLM 0.32.0   does not start: capability gate"
    assert blocks[2].splitlines() == [
        "  ValidationError:",
        "    The quantization method fp8 is not supported for the current GPU. Minimum capability: "
        "75. Current capability: 70.",
        "  next: No flag changes this; use another format or a newer GPU.",
        "  source: config/vllm.py:VllmConfig._get_quantization_config"]


def test_a_refusal_at_a_layer_names_it() -> None:
    lines = text(ask("ct-w4a16", "9.0", model=QWEN_72B, tp=2)).splitlines()
    assert "  vLLM 0.32.0   does not start: shapes under TP" in lines
    assert "  ValueError at model.layers.0.mlp.down_proj:" in lines


def test_an_assertion_without_text_is_said_to_have_none() -> None:
    answer = ask(None, model={**LLAMA, "intermediate_size": 14337}, tp=2)
    assert "    (an assertion without text)" in text(answer).splitlines()


def test_what_fails_later_is_no_start() -> None:
    lines = verdict("ct-w8a8-int8", "12.0")
    assert lines[0] == "vLLM 0.32.0   does not start: first forward"
    assert lines[1].startswith("CutlassInt8ScaledMMLinearKernel is selected, but")
    assert lines[2].startswith("next: Pass --linear-backend triton")


def test_a_finding_that_is_the_verdict_is_told_once() -> None:
    assert text(ask("ct-w8a8-int8", "12.0")).count("no INT8 path") == 1


def test_a_conditional_answer_names_both_outcomes() -> None:
    whole = text(ask("fp8-static", "10.0", libs={"flashinfer": None}))
    assert "vLLM 0.32.0   starts (conditional)   W8A8" in whole
    assert ("not known from here:\n  self_attn.qkv_proj, self_attn.o_proj, mlp.gate_up_proj, "
            "mlp.down_proj: FlashInferFP8ScaledMMLinearKernel if lib.flashinfer is true, else "
            "CutlassFP8ScaledMMLinearKernel\n") in whole


def test_a_conditional_answer_without_a_fallback_says_that_the_engine_refuses() -> None:
    answer = ask(scheme("ct-w4a16", weights={"num_bits": 3}), "8.0", libs={"humming": None})
    assert ("HummingLinearKernel if lib.humming is true, else no kernel: the engine refuses"
            in text(answer))


# Findings.


def test_findings_have_severity_stage_and_a_next_step() -> None:
    answer = ask("fp8-dynamic", "8.9", kv_cache_dtype="fp8", tensors=stored(FP8_PARTS))
    lines = text(answer).splitlines()
    where = lines.index("  warning: the KV cache is FP8 but the checkpoint stores no k/v scales: "
                        "1.0 is used silently [scales in the checkpoint]")
    assert lines[where + 1] == (
        "    next: Calibrate KV scales, or use --kv-cache-dtype bfloat16.")


# --why-not.


def test_why_not_has_every_check_of_a_kernel() -> None:
    whole = text(ask("gptq4-g32", "9.0"), why_not="MacheteLinearKernel")
    block = whole[whole.index("why not MacheteLinearKernel:"):]
    assert "rejected: quant.group_size is 32; must be one of -1, 64, 128" in block
    assert ("    fail: quant.group_size is 32; must be one of -1, 64, 128  [model_executor/layers/"
            "quantization/utils/machete_utils.py:query_machete_supported_group_sizes]") in block
    assert "    pass: gpu.capability is 9.0; must be at least 9.0  [" in block
    for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
        assert name in block


@pytest.mark.parametrize("quant, kernel, answer", [
    ("gptq4-g128", "MacheteLinearKernel", "it is the one chosen"),
    ("gptq4-g128", "MarlinLinearKernel",
     "it could run, but MacheteLinearKernel comes first in the list"),
    ("gptq4-g128", "ConchLinearKernel", "rejected: lib.conch is false; must be true")])
def test_why_not_answers_first(quant: str, kernel: str, answer: str) -> None:
    whole = text(ask(quant, "9.0"), why_not=kernel)
    assert f": {answer}\n" in whole[whole.index("why not"):]


def test_why_not_a_kernel_of_no_list() -> None:
    whole = text(ask("gptq4-g128", "9.0"), why_not="CutlassFP8ScaledMMLinearKernel")
    assert ("why not CutlassFP8ScaledMMLinearKernel: it is in no candidate list of these layers"
            in whole)


def test_why_not_after_a_failed_selection() -> None:
    """Row llama8b/fp8-dynamic/90/linear_backend=b12x."""
    answer = ask("fp8-dynamic", "9.0", linear_backend="b12x")
    whole = text(answer, why_not="B12xTensorFP8ScaledMMLinearKernel")
    assert "rejected: gpu.family is 9.x; must be 12.x" in whole
    assert "model.layers.0.self_attn.qkv_proj" in whole[whole.index("why not"):]


def test_why_not_an_attention_backend() -> None:
    whole = text(ask(None, "9.0"), why_not="FLASHINFER")
    assert ("self_attn.attn: it could run, but FLASH_ATTN comes first in the list" in whole)


# -v.


def test_verbose_has_every_step_candidate_check_and_source() -> None:
    answer = ask("gptq4-g128", "9.0")
    brief, whole = text(answer), text(answer, verbose=True)
    assert whole.startswith(brief[:-1])
    depth = whole[whole.index("\ntrace:\n"):]
    assert ("  Overridden: gptq -> auto_gptq (checkpoint says gptq, --quantization is not given)  ["
            in depth)
    assert "    Reordered: HummingLinearKernel before MarlinLinearKernel (" in depth
    assert "    -> MacheteLinearKernel: pass\n" in depth
    assert "       MarlinLinearKernel: would pass; the engine stops before it\n" in depth
    for layer in answer.trace.layers:
        for candidate in layer.selection.candidates if layer.selection else ():
            for check in candidate.checks:
                line = re.escape(f"{check.verdict}: {check.text}  [{check.source}]")
                sized = re.sub(r"(layer\\\.\w+\\ (?:is\\ |\\\())(\d+)",
                               r"\1[\\d, ]*\\b\2\\b[\\d, ]*", line)
                assert re.search(sized, depth), line


def test_verbose_tells_layers_that_differ_in_sizes_only_once() -> None:
    whole = text(ask("awq4-g128", "8.0", model=LLAMA_8B), verbose=True)
    assert whole.count("CutlassW4A8LinearKernel: fail") == 1
    assert ("\n  model.layers.*.self_attn.qkv_proj (32), model.layers.*.self_attn.o_proj (32), "
            "model.layers.*.mlp.gate_up_proj (32), model.layers.*.mlp.down_proj (32)\n"
            "    AutoAWQMarlinLinearMethod\n") in whole
    assert "pass: layer.n is 6144, 4096, 28672; must be a multiple of 128  [" in whole


def test_sizes_of_one_rank_are_said_to_be() -> None:
    assert "count  N x K per rank  kernel" in text(ask("fp8-static", "9.0", tp=2))
    assert "N x K  kernel" in text(ask("fp8-static", "9.0"))


def test_rows_of_one_path_say_of_which_layers_each_is() -> None:
    answer = ask(quantization("ct-fp8-dynamic", ignore=["re:.*layers.[01].mlp.*"]), "9.0",
                 model={**LLAMA, "num_hidden_layers": 4})
    brief = text(answer)
    for row in ("mlp.down_proj (layers 0-1)", "mlp.down_proj (layers 2-3)"):
        assert f"\n  {row}  " in brief
    assert "\n  self_attn.o_proj  " in brief
    assert "\n  model.layers.*.mlp.down_proj (layers 0-1)" in text(answer, verbose=True).replace(
        "model.layers.*.mlp.gate_up_proj (layers 0-1), ", "")


@pytest.mark.parametrize("indices, words", [
    ([3], "layer 3"), ([0, 1, 2], "layers 0-2"), ([5, 0, 1], "layers 0-1, 5"),
    (list(range(0, 10, 2)), "layers 0, 2, 4, 6 ... 8"), ([0, 2, 4, 6], "layers 0, 2, 4, 6")])
def test_layers_are_told_in_runs(indices: list[int], words: str) -> None:
    assert layer_words(indices) == words


def test_brief_has_no_trace() -> None:
    assert "trace:" not in text(ask("gptq4-g128", "9.0"))


# Every answer.


def test_no_line_ends_in_a_space_and_every_text_ends_in_one_newline() -> None:
    """The engine's own words keep its spaces: "Reasons: " ends in one."""
    for row in list(golden_rows().values())[::40]:
        whole = text(ask_row(row), verbose=True, why_not="MarlinLinearKernel")
        assert whole.endswith("\n") and not whole.endswith("\n\n"), row["id"]
        ours = [line for line in whole.splitlines() if not line.endswith("Reasons: ")]
        assert [line for line in ours if line != line.rstrip()] == [], row["id"]


def test_every_mode_of_the_kernels_has_words() -> None:
    """A mode that a golden row names is one of the table of modes."""
    named = {layer["mode"] for row in golden_rows().values() for layer in row["expect"]["layers"]
             if layer.get("mode")}
    assert named - set(modes()) == set()
    rows = load_engine("vllm")["kernels"].values()
    fixed = {case["mode"] for row in rows for case in (row, *row.get("mode_when", ()))
             if "mode" in case and "{" not in case["mode"]}
    assert fixed - set(modes()) == set()


def test_float32_is_told_as_32_bits() -> None:
    lines = verdict(None, "9.0", dtype="float32")
    assert lines[0] == "vLLM 0.32.0   starts   W32A32: weights and activations 32-bit"


def test_the_question_names_variables_and_libraries() -> None:
    answer = ask("gptq4-g128", "9.0", env={"VLLM_BATCH_INVARIANT": "0"}, libs={"flashinfer": None})
    assert text(answer).splitlines()[0].endswith(
        "float16, --env VLLM_BATCH_INVARIANT=0, --lib flashinfer=unknown".replace(
            "float16", answer.trace.dtype))


def test_why_not_where_the_engine_stops_before_any_list() -> None:
    whole = text(ask("gptq4-desc", "9.0"), why_not="MarlinLinearKernel")
    assert ("why not MarlinLinearKernel: the engine stops at config fields, before it looks at any"
            in whole)


MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
           "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6}


@pytest.mark.parametrize("quant, capability, because", [
    ("fp8-static", "8.0", "this GPU (8.0) has no FP8 tensor cores"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "9.0",
     "this GPU (9.0) has no FP4 tensor cores"),
    ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}, "9.0",
     "the checkpoint quantizes weights only")])
def test_experts_say_what_the_gpu_lacks_before_what_a_class_asks(
        quant: Any, capability: str, because: str) -> None:
    answer = ask(quant, capability, model=MIXTRAL)
    assert f"because {because}\n" in text(answer)
    experts = [layer for layer in answer.trace.layers if layer.module == "RoutedExperts"]
    assert {why_mode(layer, layer.mode or "") for layer in experts} == {because}


def test_rows_that_look_alike_are_one() -> None:
    """gpt-oss alternates sliding and full attention: two kinds of layer, one line."""
    file = Path(__file__).parents[1] / "golden" / "families-vllm-0.32.0.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    row = next(r for r in map(json.loads, lines) if r["id"].startswith("real/openai/gpt-oss"))
    answer = explain(row["config"], capability="9.0", tp=row["tp"])
    attention = [layer for layer in answer.trace.layers if layer.attn_backend]
    assert len({layer.path.rpartition(".")[2] for layer in attention}) == 1 < len(attention)
    shown = [line.split() for line in text(answer).splitlines() if line.startswith("  attn.attn ")]
    assert [line[1] for line in shown] == [str(len(attention))]


def test_a_message_that_fills_a_screen_is_shortened() -> None:
    """The engine lists its 350 classes in one line; the JSON has them all."""
    answer = explain({**LLAMA, "architectures": ["FooBarForCausalLM"]}, capability="9.0")
    assert answer.trace.error is not None
    message = answer.trace.error.message
    assert answer.to_dict()["error"]["message"] == message
    (line,) = (line for line in text(answer).splitlines() if "FooBar" in line)
    assert line == (f"    {message[:500]}... ({len(message) - 500:,} more characters; "
                    "--format json has all of it)")


def test_the_heading_names_the_layers_that_stay_in_16_bits() -> None:
    """gpt-oss: its method takes experts only, and routers are built without it."""
    answer = text(explain("gpt-oss-20b", capability="9.0"))
    assert ("W16A16: weights and activations 16-bit, because this method quantizes routed experts "
            "only (attn.qkv_proj, attn.o_proj); built without the quantization config "
            "(mlp.router)\n") in answer
