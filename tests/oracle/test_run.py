"""Verdicts on cases, what a whole run comes to, and how it is told."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from engine_answers import FAKE, as_engine
from jsonschema import validate
from quantplan.reports.verify_text import verify_text
from quantplan.tables.engine_loading import load_engine
from quantplan.tables.errors import UsageError

from quantplan import explain, reports
from quantplan.api import open_model
from quantplan.oracle.cases import Case, checkpoint_case, option_names, read_cases
from quantplan.oracle.engine_process import Where
from quantplan.oracle.run import judge, verdicts
from quantplan.oracle.summary import exit_code, summary

TABLE = load_engine("vllm", "0.32.0")
SCHEMA = json.loads((Path(str(reports.__file__)).parent / "schema" / "verify.v1.json").read_text())
MACHINE = {"capability": 89, "libs": {}}


def case(name: str = "a", quant: Any = "fp8-static", **fields: Any) -> Case:
    config = {**LLAMA, "quantization_config": quantization(quant) if isinstance(quant, str)
              else quant}
    return Case(**{"id": name, "kind": "fp8", "config": config, "capability": 89, **fields})


def engines(of: Case) -> dict[str, Any]:
    """Return an engine's answer that agrees with ours."""
    ours = explain(of.config, engine="vllm", engine_version="0.32.0", capability=of.capability,
                   **of.asked())
    return {**as_engine(ours.to_dict()), "machine": MACHINE}


REFUSED = {"outcome": "error", "machine": MACHINE,
           "error": {"type": "ValueError", "message": "no", "layer": None, "source": None}}
UNTOLD = {"outcome": "untold", "reason": "no answer within 60 s"}


# One case.


def test_the_same_answer_agrees() -> None:
    verdict = judge(case(), engines(case()), TABLE)
    assert (verdict.status, verdict.differences) == ("agree", ())


def test_another_answer_disagrees() -> None:
    verdict = judge(case(), REFUSED, TABLE)
    assert verdict.status == "disagree"
    assert verdict.differences[0].engine_reason == "ValueError: no"


def test_what_we_do_not_know_is_a_gap_and_not_a_disagreement() -> None:
    unknown = Case("a", "x", {**LLAMA, "architectures": ["HrmTextForCausalLM"]}, 89)
    verdict = judge(unknown, REFUSED, TABLE)
    assert verdict.status == "gap"
    assert "HrmTextForCausalLM" in str(verdict.reason)


def test_an_engine_that_does_not_tell_is_counted_apart() -> None:
    verdict = judge(case(), UNTOLD, TABLE)
    assert (verdict.status, verdict.reason) == ("untold", "no answer within 60 s")


BAD = {"quant_method": "fp8", "activation_scheme": ["static"]}
"""A config that we refuse before any engine reads it."""


def test_a_question_that_both_refuse_is_counted_apart() -> None:
    assert judge(case(quant=BAD), REFUSED, TABLE).status == "refused"


def test_a_question_that_only_we_refuse_is_a_disagreement() -> None:
    verdict = judge(case(quant=BAD), engines(case()), TABLE)
    assert verdict.status == "disagree"
    assert str(verdict.differences[0].ours).startswith("CheckpointError: ")


def test_a_fault_of_ours_is_a_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **named: Any) -> None:
        raise ZeroDivisionError("division by zero")

    answer = engines(case())
    monkeypatch.setattr("quantplan.oracle.run.explain", broken)
    (found,) = judge(case(), answer, TABLE).differences
    assert (found.field, found.ours, found.engines) == (
        "outcome", "ZeroDivisionError: division by zero", "ok")


def test_on_this_machine_its_own_gpu_and_libraries_are_explained() -> None:
    own = case(capability=None)
    answer = engines(case(capability=100, libs={"flashinfer": False}))
    answer["machine"] = {"capability": 100, "libs": {"flashinfer": False}}
    assert judge(own, answer, TABLE).status == "agree"


# Many cases, through a worker.


def fake(name: str, answer: Any, **fields: Any) -> Case:
    given = case(name, **fields)
    return given._replace(config={**given.config, "fake": answer})


def cases() -> list[Case]:
    agreed = {name: value for name, value in engines(case()).items() if name != "machine"}
    return [fake("right", agreed), fake("wrong", {**agreed, "method": "awq"}),
            fake("dead", "die"), fake("gone", agreed, capability=60, kind="other")]


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_every_case_comes_to_something_whatever_the_worker_does(jobs: int) -> None:
    found = verdicts(cases(), Where(worker=FAKE), TABLE, jobs=jobs, limit_s=10)
    assert {verdict.case.id: verdict.status for verdict in found} == {
        "right": "agree", "wrong": "disagree", "dead": "untold", "gone": "untold"}


def test_cases_of_one_machine_follow_each_other() -> None:
    asked = [fake(str(number), {"outcome": "untold", "reason": ""},
                  env={"VLLM_BATCH_INVARIANT": str(number % 2)}) for number in range(6)]
    found = [verdict.case.id for verdict in verdicts(asked, Where(worker=FAKE), TABLE)]
    assert found == ["0", "2", "4", "1", "3", "5"]


def test_a_summary_follows_its_schema_and_counts_every_case() -> None:
    found = summary(verdicts(cases(), Where(worker=FAKE), TABLE, limit_s=10), TABLE, "0.32.0", "py")
    validate(json.loads(json.dumps(found)), SCHEMA)
    assert found["totals"] == {"agree": 1, "refused": 0, "explained": 0, "disagree": 1, "gap": 0,
                               "untold": 2}
    assert found["kinds"]["fp8"] == {"agree": 1, "refused": 0, "explained": 0, "disagree": 1,
                                     "gap": 0, "untold": 1}
    assert [row["id"] for row in found["disagreements"]] == ["wrong"]
    assert [(row["reason"], row["cases"]) for row in found["untold"]] == [
        ("the engine's process ended: Segmentation fault", 1),
        ("the engine did not come up: no such machine", 1)]


def test_a_disagreement_can_be_asked_again_from_a_file(tmp_path: Path) -> None:
    wrong = cases()[1]
    found = summary(verdicts([wrong], Where(worker=FAKE), TABLE), TABLE, "0.32.0", "py")
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(found["disagreements"][0]["case"]) + "\n\n")
    assert list(read_cases(str(path))) == [wrong]


@pytest.mark.parametrize("totals, code", [
    ({"agree": 1}, 0), ({"refused": 1}, 0), ({"explained": 1}, 0),
    ({"agree": 1, "gap": 5, "untold": 5}, 0),
    ({"agree": 9, "disagree": 1}, 1), ({"disagree": 1, "untold": 1}, 1),
    ({"gap": 1}, 4), ({"untold": 3}, 4)])
def test_exit_codes(totals: dict[str, int], code: int) -> None:
    zero = dict.fromkeys(("agree", "refused", "explained", "disagree", "gap", "untold"), 0)
    assert exit_code({"totals": {**zero, **totals}}) == code


# Told.

TOLD = """\
vLLM 0.32.0: 1 disagreement in 2 compared of 4 cases

  kind   agree  disagree  could not tell
  fp8        1         1               1
  other                                1
  total      1         1               2

case wrong (fp8): capability=89
  method
    ours    fp8
    engine  awq

could not tell: the engine's own answer is missing:
  1  the engine's process ended: Segmentation fault  e.g. dead
  1  the engine did not come up: no such machine     e.g. gone
"""


def test_the_text() -> None:
    found = summary(verdicts(cases(), Where(worker=FAKE), TABLE, limit_s=10), TABLE, "0.32.0", "py")
    assert verify_text(found) == TOLD


def test_a_version_without_a_table_is_told_so() -> None:
    found = summary([judge(case(), engines(case()), TABLE)], TABLE, "0.34.0", "py")
    assert verify_text(found).splitlines()[:3] == [
        "vLLM 0.34.0: 0 disagreements in 1 compared of 1 cases",
        "vLLM 0.34.0 has no table: this compares it with the table of 0.32.0, and differences may "
        "be the version's.", ""]


def test_a_difference_is_told_with_reason_and_source() -> None:
    answer = engines(case())
    for row in answer["layers"]:
        if row["path"].endswith("qkv_proj"):
            row |= {"kernel": "FlashInferFP8ScaledMMLinearKernel",
                    "rejected": [["CutlassFP8ScaledMMLinearKernel", "not\nbuilt"]]}
    text = verify_text(summary([judge(case(), answer, TABLE)], TABLE, "0.32.0", "py"))
    assert text[text.index("case a"):] == (
        "case a (fp8): capability=89\n"
        "  model.layers.*.self_attn.qkv_proj [0, 1]: kernel\n"
        "    ours    CutlassFP8ScaledMMLinearKernel\n"
        "            gpu.capability is 8.9; must be at least 10.0   [model_executor/kernels/linear/"
        "scaled_mm/flashinfer.py:FlashInferFP8ScaledMMLinearKernel.is_supported]\n"
        "    engine  FlashInferFP8ScaledMMLinearKernel\n"
        "            not | built\n")


def test_many_differences_of_a_case_are_cut_in_the_text() -> None:
    answer = engines(case())
    answer["layers"] = []
    text = verify_text(summary([judge(case(), answer, TABLE)], TABLE, "0.32.0", "py"))
    assert text.count(": layer\n") == 6
    assert text.endswith("  and 1 more differences\n")


# Cases.


def test_flags_are_named_as_the_engine_names_them() -> None:
    asked = case(options={"tp": 2, "dtype": "float16", "quantization": None,
                          "linear_backend_per_quant": {"nvfp4": "marlin"}})
    assert asked.question()["flags"] == {
        "tensor_parallel_size": 2, "dtype": "float16",
        "kernel_config": {"linear_backend_per_quant": {"nvfp4": "marlin"}}}
    assert {"tp", "dtype", "quantization", "kv_cache_dtype"} <= set(option_names())


def test_a_checkpoint_is_asked_with_its_headers_and_side_files() -> None:
    checkpoint = open_model("qwen2.5-0.5b", as_format="fp8")
    asked = checkpoint_case(checkpoint, 89)
    assert asked.id == "qwen2.5-0.5b as fp8 at 8.9"
    assert asked.question()["tensors"]["model.layers.0.mlp.down_proj.weight"] == "F8_E4M3"
    assert asked.tensors is not None
    assert asked.tensors["model.layers.0.mlp.down_proj.weight"] == ["F8_E4M3", [896, 4864]]


@pytest.mark.parametrize("line, said", [
    ("{", "not JSON; found "),
    ("[]", "not a case; wanted an object; found list"),
    ('{"id": "a"}', "config is missing; wanted id and config"),
    ('{"id": "a", "config": {}, "gpu": 1}', "unknown field 'gpu'; wanted one of id, kind, "),
    ('{"id": "a", "config": []}', "config; wanted dict; found list"),
    ('{"id": "a", "config": {}, "options": {"ep": 1}}', "unknown option 'ep'; wanted one of tp, "),
])
def test_a_line_that_is_no_case_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(UsageError) as raised:
        list(read_cases(str(path)))
    assert str(raised.value).startswith(f"{path}:2: {said}")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"--cases nowhere.jsonl; wanted .* found No such file"):
        list(read_cases("nowhere.jsonl"))


def test_the_worker_needs_nothing_of_ours_but_itself(tmp_path: Path) -> None:
    """It starts where quantplan is not installed, and says that there is no engine."""
    import subprocess

    from quantplan.oracle.engine_process import WORKER

    start = {"paths": [], "emulate": True, "only_version": True}
    done = subprocess.run([sys.executable, "-I", "-S", WORKER], input=json.dumps(start) + "\n",
                          capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
                          env={"PATH": os.environ["PATH"]})
    assert json.loads(done.stdout) == {"fault": "torch is not importable"}


MOE = {**LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
       "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768, "head_dim": 128}


def test_the_engine_is_shown_the_headers_that_our_answer_assumes() -> None:
    """Without them vLLM 0.32.0 quantizes the routers of a GPTQ or AWQ config.json, and with them
    its answer was ours in 80 cases of both methods."""
    quant = quantization("gptq4-g128")
    shown = case(config={**MOE, "quantization_config": quant}).question()["tensors"]
    assert shown["model.layers.1.mlp.gate.weight"] == "BF16"
    assert shown["model.layers.0.self_attn.q_proj.qweight"] == "I32"
    assert shown["model.layers.0.mlp.experts.0.down_proj.qweight"] == "I32"
    given = {"model.norm.weight": "BF16"}
    assert case(config={**MOE, "quantization_config": quant},
                tensors=given).question()["tensors"] == given
    assert case(quant=quant).question()["tensors"] is None
    assert case(config={**MOE, "quantization_config": quantization("fp8-static")}
                ).question()["tensors"] is None
