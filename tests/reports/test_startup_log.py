"""The start-up log reader: figures of the truth rows in the engines' own line formats."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from memory_truth import by_worker, truth_row, truth_rows
from quantplan.reports import log_source
from quantplan.reports.log_fields import log_fields
from quantplan.reports.startup_log import StartupLog, parse_log, read_log
from quantplan.tables.errors import UsageError
from quantplan.tables.log_rows import log_table
from startup_logs import sglang_log, vllm_log

FULL = [row for row in truth_rows() if row["version"] == "0.19.0" and "kv_tokens" in row["printed"]]
READ_AS = {"weights_gib": "weights_gib", "activations_gib": "activations_gib",
           "non_torch_gib": "non_torch_gib", "kv_gib": "kv_gib", "kv_tokens": "kv_tokens",
           "concurrency": "concurrency_x", "memory_gib": "memory_gib", "free_gib": "free_gib",
           "engine_memory_gib": "engine_memory_gib", "graphs_gib": "graphs_gib",
           "graphs_captured_gib": "graphs_captured_gib", "non_kv_gib": "non_kv_gib"}


@pytest.mark.parametrize("row", FULL, ids=lambda row: str(row["id"]))
def test_every_figure_of_a_run_is_read(row: dict[str, Any]) -> None:
    log = parse_log(vllm_log(row))
    assert (log.engine, log.version, log.model) == ("vllm", "0.19.0", row["model"])
    for name, printed in by_worker(row["printed"]).items():
        wanted = printed if isinstance(printed, list) else [printed]
        assert sorted(set(log.values(READ_AS[name]))) == sorted(wanted), name
    assert log.args["gpu_memory_utilization"] == 0.95
    assert log.config["dtype"].startswith("torch.")


def test_workers_are_told_apart() -> None:
    log = parse_log(vllm_log(truth_row("mem-027")))
    assert log.by_worker("activations_gib") == {
        "Worker_PP0": 1.05, "Worker_PP1": 1.1, "Worker_PP2": 2.01, "Worker_PP3": 2.01}
    assert (log.most("activations_gib"), log.least("activations_gib")) == (2.01, 1.05)


def test_size_and_concurrency_on_one_line() -> None:
    """vLLM 0.25 to 0.33 (v1/core/kv_cache_utils.py:update_kv_cache_capacity)."""
    log = parse_log(["(EngineCore pid=7) INFO 11-01 10:00:00 [kv_cache_utils.py:2327] GPU KV cache "
                     "size: 476,016 tokens, Maximum concurrency for 8,192 tokens per request: "
                     "58.11x"])
    assert (log.most("kv_tokens"), log.most("request_tokens"), log.most("concurrency_x")) == (
        476016, 8192, 58.11)


def test_the_sum_line_of_0_32() -> None:
    """vLLM 0.32.0 v1/worker/gpu_worker.py:Worker.compile_or_warm_up_model."""
    log = parse_log(["INFO 11-01 10:00:00 [gpu_worker.py:1033] Free memory on device (78.68/79.19 "
                     "GiB) on startup. Desired GPU memory utilization is (0.92, 72.86 GiB). Actual "
                     "usage is 15.24 GiB for consumed memory (weights + non-torch), 2.73 GiB for "
                     "peak activation, and 0.91 GiB for CUDAGraph memory. Replace ..."])
    found = {name: log.most(name) for name in ("memory_gib", "utilization_share", "consumed_gib",
                                               "peak_gib", "graphs_captured_gib")}
    assert found == {"memory_gib": 79.19, "utilization_share": 0.92, "consumed_gib": 15.24,
                     "peak_gib": 2.73, "graphs_captured_gib": 0.91}


def test_a_boot_that_was_refused() -> None:
    """vLLM 0.32.0 v1/core/kv_cache_utils.py:_check_enough_kv_cache_memory."""
    log = parse_log(["ValueError: To serve at least one request with the model's max seq len "
                     "(262144), (16.0 GiB KV cache is needed, which is larger than the available "
                     "KV cache memory (10.85 GiB). Based on the available memory, the estimated "
                     "maximum model length is 177760. Try increasing `gpu_memory_utilization`"])
    assert (log.most("needed_gib"), log.most("kv_gib"), log.most("longest_model_len_tokens")) == (
        16.0, 10.85, 177760)


def test_an_older_size_unit_and_a_hybrid_s_block() -> None:
    printed = truth_row("mem-092")["printed"]
    log = parse_log(["Loading model weights took 57.752 GB", *printed["block_lines"]])
    assert (log.most("weights_gib"), log.most("block_tokens"),
            log.most("state_padding_percent")) == (57.752, 1568, 0.13)


def test_sglang() -> None:
    row = truth_row("mem-116")
    log = parse_log(sglang_log(row))
    assert (log.engine, log.model) == ("sglang", row["model"])
    assert log.args["mem_fraction_static"] == 0.817
    wanted = {name: value for name, value in row["printed"].items() if value is not None}
    assert {name: log.most(name) for name in wanted} == wanted
    assert log.text("architecture") == "Qwen3ForCausalLM"
    assert (log.most("running_count"), log.most("chunked_prefill_tokens")) == (2048, 2048)
    assert set(log.by_worker("weights_gib")) == {"TP0"}


def test_sglang_pools_of_hybrids() -> None:
    """SGLang 0.5.22 mem_cache/memory_pool.py and model_executor/pool_configurator.py."""
    log = parse_log([
        "[2026-11-01 10:00:00 TP1] Use sliding window memory pool. full_layer_tokens=1000, "
        "swa_layer_tokens=800",
        "[2026-11-01 10:00:00 TP1] Mamba Cache is allocated. max_mamba_cache_size: 96, conv_state "
        "size: 0.42GB, ssm_state size: 9.00GB ",
        "[2026-11-01 10:00:00 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1000, "
        "KV size: 3.25 GB"])
    names = ("full_layer_tokens", "swa_layer_tokens", "state_count", "ssm_state_gib", "kv_gib")
    assert [log.by_worker(name) for name in names] == [
        {"TP1": value} for value in (1000, 800, 96, 9.0, 3.25)]


# Where a log comes from.

LINES = vllm_log(truth_row("mem-028"))


def figures(log: StartupLog) -> list[tuple[str, object, str]]:
    return [(f.name, f.value, f.worker) for f in log.figures]


@pytest.mark.parametrize("before", ["", "vllm-1  | ", "2026-11-01T10:00:00.123Z stdout F "])
@pytest.mark.parametrize("encode", [
    lambda text: text.encode(), lambda text: gzip.compress(text.encode()),
    lambda text: text.replace("\n", "\r\n").encode()], ids=["plain", "gzip", "crlf"])
def test_the_same_log_in_other_clothes(tmp_path: Path, before: str, encode: Any) -> None:
    lines = [before + "\x1b[0;36m" + line.replace(") ", ")\x1b[0;0m ", 1) for line in LINES]
    path = tmp_path / "boot.log"
    path.write_bytes(encode("\n".join(lines)))
    assert figures(read_log(str(path))) == figures(parse_log(LINES))


def test_utf_16_of_a_windows_shell(tmp_path: Path) -> None:
    path = tmp_path / "boot.log"
    path.write_bytes("\n".join(LINES).encode("utf-16"))
    log, plain = read_log(str(path)), parse_log(LINES)
    assert (log.version, log.args, log.values("weights_gib"), log.values("kv_tokens")) == (
        plain.version, plain.args, plain.values("weights_gib"), plain.values("kv_tokens"))


def test_the_last_start_is_read_and_a_note_says_so() -> None:
    second = [line.replace("7.51 GiB memory", "7.60 GiB memory") for line in LINES]
    log = parse_log([*LINES, *second])
    assert (log.starts, log.values("weights_gib")) == (2, [7.6, 7.6])
    assert [note.id for note in log.notes] == ["several-starts"]


def test_other_programs_and_hostile_bytes_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "boot.log"
    path.write_bytes(b"\x00\xff\xfe\x1b[2J" * 1000 + b"\n" + b"Model loading took 1.2.3 GiB\n"
                     + b"non-default args: {" + b"[" * 5000 + b"\n"
                     + b"GPU KV cache size: " + b"9" * 5000 + b" tokens\n")
    log = read_log(str(path))
    assert log.engine == "vllm"
    assert log.values("weights_gib") == []
    assert log.values("kv_tokens") == [int("9" * 18)]
    assert log.args == {}


def test_a_log_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gzip.compress("\n".join(LINES * 50).encode())
    path = tmp_path / "boot.log.gz"
    path.write_bytes(whole[: len(whole) // 2])
    log = read_log(str(path))
    assert log.values("weights_gib") == [7.51, 7.51]
    assert "log-incomplete" in [note.id for note in log.notes]
    monkeypatch.setattr(log_source, "LONGEST_LOG", 2000)
    path.write_bytes("\n".join(LINES).encode())
    assert [note.id for note in read_log(str(path)).notes] == ["log-incomplete"]


def test_a_line_that_is_too_long_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "boot.log"
    path.write_bytes(b"x" * (log_source.LONGEST_LINE * 3 + 5) + b"\nModel loading took 5.0 GiB\n")
    log = read_log(str(path))
    assert log.most("weights_gib") == 5.0
    assert [note.id for note in log.notes] == ["log-line-cut"]


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_no_log_to_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--check"):
        read_log(str(tmp_path / name))


PIECES = [*(row["holds"] for engine in ("vllm", "sglang") for row in log_table(engine)["lines"]),
          *LINES, "{'a': [", "'", "\\", "1.2.3 GiB", "9" * 40, ", 'b': {1}"]


@given(st.lists(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=20)), max_size=4)
                .map("".join), max_size=12))
def test_nothing_that_a_log_holds_breaks_the_reader(lines: list[str]) -> None:
    log = parse_log(lines)
    assert log.engine in (None, "vllm", "sglang")
    assert all(1 <= figure.line <= len(lines) for figure in log.figures)


# Arguments.

@pytest.mark.parametrize(("text", "fields"), [
    ("{'a': 1, 'b': 'x, y', 'c': {'d': [1, 2]}} tail", {"a": 1, "b": "x, y", "c": {"d": [1, 2]}}),
    ("a=1, b='x', c=None)", {"a": 1, "b": "x", "c": None}),
    ("{'a': <Kind.B: 1>, 'b': True}", {"a": "<Kind.B: 1>", "b": True}),
    ("{'a': 1, 'b': 'cut of", {"a": 1}),
    ("{'a': __import__('os').getcwd()}", {"a": "__import__('os').getcwd()"}),
    ("model='m', dtype=torch.bfloat16, max_seq_len=8", {"model": "m", "dtype": "torch.bfloat16",
                                                        "max_seq_len": 8}),
])
def test_arguments(text: str, fields: dict[str, Any]) -> None:
    assert log_fields(text) == fields
