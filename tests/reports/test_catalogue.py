"""What is known and what is here, as text and JSON."""

from __future__ import annotations

import json

from quantplan.dispatch.bundled import bundled_models
from quantplan.dispatch.facts import Gpu
from quantplan.dispatch.gpu import all_gpus, gpu_of
from quantplan.dispatch.gpu_probe import Probe
from quantplan.dispatch.nvml import Problem
from quantplan.reports.catalogue import gpu_table, model_data, model_table, probe_data, probe_text
from quantplan.tables.errors import NotKnownError

from quantplan import budget


def test_every_gpu_has_a_line() -> None:
    lines = gpu_table(all_gpus()).splitlines()
    assert lines[0].split() == ["id", "capability", "memory", "from", "bandwidth", "name"]
    assert [line.split()[0] for line in lines[1:]] == [row["id"] for row in all_gpus()]


def test_a_gpu_s_line() -> None:
    """RTX 4090: 8.9, 1008 GB/s (NVIDIA's Ada whitepaper)."""
    row = next(row for row in all_gpus() if row["id"] == "rtx-4090")
    memory = gpu_of(row).memory_bytes
    assert memory is not None
    line = gpu_table([row]).splitlines()[1]
    assert line.split()[:2] == ["rtx-4090", "8.9"]
    assert f"{memory / 2**30:.2f} GiB" in line
    assert "1,008 GB/s" in line
    assert line.endswith("NVIDIA GeForce RTX 4090")


def test_a_gpu_without_a_figure_has_a_dash() -> None:
    row = {**next(row for row in all_gpus() if row["id"] == "rtx-4090")}
    del row["bandwidth_gb_per_s"]
    assert " -  NVIDIA GeForce RTX 4090" in gpu_table([row])


def test_every_model_has_a_line() -> None:
    lines = model_table(model_data(bundled_models())).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [row["id"] for row in bundled_models()]


def test_a_model_s_line() -> None:
    """Llama-3.1-8B has 8,030,261,248 parameters."""
    row = next(row for row in bundled_models() if row["id"] == "llama-3.1-8b")
    line = model_table(model_data([row])).splitlines()[1]
    assert line.split()[:4] == ["llama-3.1-8b", "8.03", "B", "yes"]


def test_the_models_say_whether_budget_answers() -> None:
    """As it does when it is asked: a family whose every weight has a row, in a known format."""
    for row in model_data(bundled_models()):
        try:
            budget(row["id"], gpu_mem="80GiB")
        except NotKnownError:
            assert not row["budget"], row["id"]
        else:
            assert row["budget"], row["id"]


ONE = Gpu("NVIDIA GeForce RTX 4090", 89, 128, 25_246_105_600, 24_000_000_000, "driver",
          origin="nvml")
PROBE = Probe((ONE,), "580.1", "13.0",
              (Problem("one-problem", "something stood in the way", "Do this."),), ())


def test_a_probe_as_data() -> None:
    data = probe_data(PROBE)
    assert json.loads(json.dumps(data)) == data == {
        "schema": "quantplan/probe/1", "driver": "580.1", "cuda_driver": "13.0",
        "gpus": [{"name": "NVIDIA GeForce RTX 4090", "capability": "8.9", "sm_count": 128,
                  "memory_bytes": 25_246_105_600, "memory_free_bytes": 24_000_000_000,
                  "memory_kind": "driver"}],
        "problems": [{"id": "one-problem", "message": "something stood in the way",
                      "hint": "Do this."}]}


def test_a_probe_as_text() -> None:
    assert probe_text(PROBE).splitlines() == [
        "driver 580.1, CUDA 13.0",
        "index    name                       capability      total       free",
        "0        NVIDIA GeForce RTX 4090           8.9  23.51 GiB  22.35 GiB",
        "one-problem: something stood in the way",
        "  next: Do this."]


def test_a_probe_that_found_nothing() -> None:
    nothing = Probe((), None, None, (Problem("no-driver", "no driver", ""),), ())
    assert probe_text(nothing) == "driver unknown, CUDA unknown\nno-driver: no driver"
