"""A budget against start-up logs: verdicts, terms and causes of gaps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1]))

from memory_truth import model_config, truth_row
from quantplan.reports.budget_check import BudgetCheck, compare
from quantplan.reports.startup_log import parse_log
from quantplan.tables.errors import NotKnownError, UsageError
from startup_logs import sglang_log, vllm_log

from quantplan import budget
from quantplan.cli import quantplan
from quantplan.memory_check import check_budget, logged_options

SCHEMA = json.loads((Path(__file__).parents[2] / "reports" / "schema"
                     / "budget-check.v1.json").read_text(encoding="utf-8"))
LLAMA = truth_row("mem-001")


def changed(row: dict[str, Any], **printed: Any) -> dict[str, Any]:
    return {**row, "printed": {**row["printed"], **printed}}


def check(row: dict[str, Any], lines: list[str] | None = None, **options: Any) -> BudgetCheck:
    if lines is None:
        lines = sglang_log(row) if row["engine"] == "sglang" else vllm_log(row)
    found = check_budget(parse_log(lines, "boot.log"), model_config(row["model"]), **options)
    jsonschema.validate(json.loads(json.dumps(found.to_dict())), SCHEMA)
    return found


def cause_ids(found: BudgetCheck) -> set[str]:
    return {cause.id for cause in found.causes}


@pytest.mark.parametrize("id_", ["mem-001", "mem-024", "mem-027", "mem-054", "mem-056", "mem-066"])
def test_public_logs_agree(id_: str) -> None:
    """CodeLlama 7B, Llama 3.1 8B on one rank and in four stages, Qwen2.5 7B on four ranks, Qwen3 8B
    and 14B: H100, vLLM 0.18.0 and 0.19.0."""
    found = check(truth_row(id_), gpu="h100")
    assert (found.verdict, found.exit_code) == ("agrees", 0)
    terms = {term.name: term for term in found.terms}
    for name in ("weights", "KV cache memory", "KV tokens", "KV tokens of the printed memory"):
        assert terms[name].agrees, terms[name]
    assert found.rules == f"vllm {truth_row(id_)['version'].split(' ')[0]}"


def test_terms_are_the_log_s_and_the_budget_s() -> None:
    terms = {term.name: term for term in check(LLAMA).terms}
    assert [(term.printed, term.unit) for term in terms.values()][:4] == [
        (75.23, "GiB"), (12.56, "GiB"), (0.77, "GiB"), (0.25, "GiB")]
    assert terms["engine memory"].predicted == pytest.approx(79.19 * 0.95)
    gap = terms["weights"].gap
    assert gap is not None and abs(gap) <= 0.02 == terms["weights"].tolerance
    assert terms["KV tokens of the printed memory"].predicted == pytest.approx(126256, abs=32)


def test_options_come_from_the_log() -> None:
    found, notes = logged_options(parse_log(vllm_log(truth_row("mem-028"))))
    assert found == {"tp": 2, "max_model_len": 8192, "gpu_memory_utilization": 0.95,
                     "enable_prefix_caching": False, "dtype": "bfloat16"}
    assert notes == []


def test_an_argument_that_is_no_value_is_passed_over_and_named() -> None:
    found, notes = logged_options(parse_log(["non-default args: {'tensor_parallel_size': [2], "
                                             "'max_num_seqs': 'many', 'max_model_len': 4096}"]))
    assert found == {"max_model_len": 4096}
    assert [note.id for note in notes] == ["flag-not-read", "flag-not-read"]


# Causes.

def test_another_tensor_parallel_size() -> None:
    found = check(LLAMA, tp=2)
    assert (found.exit_code, "other-ranks" in cause_ids(found)) == (1, True)
    assert "the log says tp 1, asked was 2" in [note.message for note in found.notes]


def test_another_model() -> None:
    found = check(changed(LLAMA, weights_gib=4.9, kv_tokens=670160))
    assert "other-model" in cause_ids(found)
    lines = [*vllm_log(LLAMA), "INFO [model.py:733] Resolved architecture: Qwen3ForCausalLM"]
    assert "the log is of a Qwen3ForCausalLM, the budget of a LlamaForCausalLM" in [
        cause.message for cause in check(LLAMA, lines).causes]


def test_another_utilization() -> None:
    found = check(LLAMA, gpu_memory_utilization=0.9)
    assert "other-utilization" in cause_ids(found)


def test_graphs_that_this_version_subtracts() -> None:
    """0.19 estimates 0.84 GiB of graphs and subtracts them only where the environment asks for it
    (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, on by default since 0.21)."""
    found = check(changed(LLAMA, kv_gib=60.82, kv_tokens=124544, concurrency=15.2))
    assert (found.exit_code, "graphs-subtracted" in cause_ids(found)) == (1, True)


def test_other_processes_on_the_gpu() -> None:
    assert "other-processes" in cause_ids(check(changed(LLAMA, free_gib=70.1)))
    assert "other-processes" not in cause_ids(check(LLAMA))


def test_the_rotary_table_in_32_bits() -> None:
    """FlashInfer keeps 131072 x 128 numbers in four bytes each, not in two."""
    log = parse_log(["Model loading took 15.02 GiB memory and 2.0 seconds"])
    found = budget("llama-3.1-8b", gpu="h100")
    lines = (found.weights.lines[0]._replace(bytes=round(14.958 * 2**30)),
             found.weights.lines[0]._replace(name="rotary tables", bytes=131072 * 128 * 2))
    served = found._replace(weights=found.weights._replace(lines=lines))
    assert "rotary-in-32-bits" in cause_ids(compare(log, "llama-3.1-8b", served))
    double = parse_log(["Model loading took 14.99 GiB memory and 2.0 seconds"])
    assert cause_ids(compare(double, "llama-3.1-8b", served)) == set()


def test_a_gap_of_the_memory_is_no_gap_of_the_layout() -> None:
    lost = changed(LLAMA, kv_gib=50.0, kv_tokens=102400, concurrency=12.5)
    found = check(lost)
    assert "memory-not-layout" in cause_ids(found)
    other = check(changed(LLAMA, kv_tokens=252512))
    assert "a token of the log takes 262,1" in next(
        cause.message for cause in other.causes if cause.id == "other-bytes-per-token")


def test_blocks_that_were_overridden() -> None:
    row = {**changed(LLAMA, kv_tokens=16000), "asked": {**LLAMA["asked"]}}
    lines = [line.replace("'max_model_len': 8192", "'max_model_len': 8192, "
                          "'num_gpu_blocks_override': 9000") for line in vllm_log(row)]
    assert "blocks-override" in cause_ids(check(row, lines))


def test_a_development_build_is_between_two_versions() -> None:
    lines = vllm_log(changed(LLAMA, weights_gib=16.5), version="0.26.1rc1.dev608+g99a10304d")
    found = check(LLAMA, lines)
    assert "development-build" in cause_ids(found)


# What cannot be told.

def test_a_log_without_the_gpu() -> None:
    lines = [line for line in vllm_log(LLAMA) if "memory snapshot" not in line]
    found = check(LLAMA, lines)
    assert (found.exit_code, found.verdict) == (4, "could not tell")
    assert found.problem and "--gpu" in found.problem
    assert [(t.name, t.printed) for t in found.terms if t.name == "weights"] == [("weights", 12.56)]
    assert check(LLAMA, lines, gpu="h100").verdict == "agrees"


def test_a_log_that_ends_before_the_weights() -> None:
    found = check(LLAMA, vllm_log(LLAMA)[:4])
    assert (found.verdict, found.exit_code) == ("could not tell", 4)


def test_no_engine_s_log() -> None:
    with pytest.raises(NotKnownError, match="no line of either"):
        check_budget(parse_log(["hello"]), "llama-3.1-8b")


def test_a_model_that_is_neither_bundled_nor_here() -> None:
    row = truth_row("mem-037")
    with pytest.raises(UsageError, match="the log names moonshotai/Kimi-Dev-72B"):
        check_budget(parse_log(vllm_log(row)))


# The command.

def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(quantplan, ["budget", *arguments], input=stdin)


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "boot.log"
    path.write_text("\n".join(vllm_log(truth_row("mem-056"))), encoding="utf-8")
    return str(path)


def test_the_log_names_the_model(log: str) -> None:
    done = run("--check", log)
    assert done.exit_code == 0, done.output
    assert "Qwen/Qwen3-8B on vllm 0.19.0, by the memory rules of vllm 0.19.0\nagrees" in done.output
    assert "418,688" in done.output


def test_json_and_standard_input(log: str) -> None:
    done = run("qwen3-8b", "--check", "-", "--format", "json", "--tp", "2",
               stdin=Path(log).read_text(encoding="utf-8"))
    found = json.loads(done.output)
    jsonschema.validate(found, SCHEMA)
    assert (done.exit_code, found["verdict"], found["log"]) == (1, "disagrees", "-")


def test_sglang() -> None:
    """RTX 5080, Qwen3-0.6B: 28 layers x 8 heads x 128 x 2 x 2 bytes a token."""
    found = check(truth_row("mem-116"), gpu="5080")
    terms = {term.name: term for term in found.terms}
    assert found.verdict == "agrees"
    memory, tokens = terms["KV cache memory"].predicted, terms["KV tokens"].predicted
    assert memory is not None and tokens is not None
    assert memory * 2**30 / tokens == pytest.approx(28 * 8 * 128 * 2 * 2, rel=1e-3)
    assert found.rules is not None and found.rules.startswith("sglang 0.5")
