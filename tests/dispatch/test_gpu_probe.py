"""The GPU probe against recorded machines; see tests/fake_nvml.py for how a recording is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_nvml import DEVICE, FOLDER, FakeNvml, load_recording, play, set_catalogue
from quantplan.dispatch.facts import Gpu
from quantplan.dispatch.gpu_probe import Probe, probe_gpu, probe_gpus
from quantplan.dispatch.nvml import NEEDED
from quantplan.tables.errors import UsageError

Replay = Callable[..., None]
MIB = 1 << 20
TOTAL = "driver-total"
A = "GPU-00000000-abcd-0000-0000-000000000000"
MIG_0 = "MIG-00000000-abcd-0000-0000-000000000000"
CANNOT = "this machine's GPU cannot be read: "
ONE = " Name one instead: --gpu 4090, or --capability 8.9"
OR_NAME = ", or name a GPU: --gpu 4090, or --capability 8.9"

REFUSED = {
    "no-driver": CANNOT + "NVML, the NVIDIA driver's library, is not found." + ONE,
    "driver-not-loaded": CANNOT + "the NVIDIA driver is not loaded. "
    "Load its kernel module, or pass the GPU into the container" + OR_NAME,
    "driver-mismatch": CANNOT + "the NVIDIA driver's library and its kernel module differ in "
    "version. Reboot to load the new module" + OR_NAME,
    "no-permission": CANNOT + "the NVIDIA driver refuses this user. "
    "Check the rights on /dev/nvidia*" + OR_NAME,
    "container-lost-devices": CANNOT + "the NVIDIA driver answers with an unknown error. "
    "Restart the container or the machine" + OR_NAME,
    "zero-gpus": "the NVIDIA driver runs but finds no GPU." + ONE,
    "gpu-lost": "GPU 0 cannot be read: it is lost and no longer answers on its bus. "
    "Reboot" + OR_NAME,
    "mig-empty": "GPU 0 (NVIDIA A100-SXM4-80GB) has MIG mode on and no instance: CUDA cannot use "
    "it. Create an instance or turn MIG off" + OR_NAME,
}


def read(name: str, capability: int, total_bytes: int, free_bytes: int | None) -> Gpu:
    return Gpu(name, capability, None, total_bytes, free_bytes, "driver", None, "driver")


H100 = read("NVIDIA H100 80GB HBM3", 90, 81090 * MIB, 81090 * MIB)
H200 = read("NVIDIA H200", 90, 150109880320, 150109880320)
A100 = read("NVIDIA A100-SXM4-80GB", 80, 81251 * MIB, 81251 * MIB)
SLICE = read("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 80, 9728 * MIB, 9715 * MIB)._replace(sm_count=14)
READ = {
    "one-h100": (H100,),
    "one-4090": (read("NVIDIA GeForce RTX 4090", 89, 24217 * MIB, 23007 * MIB),),
    "two-a100": (A100, A100),
    "two-h200": (H200, H200),
    "mixed-3090-4090": (read("NVIDIA GeForce RTX 3090", 86, 24257 * MIB, 24257 * MIB),
                        read("NVIDIA GeForce RTX 4090", 89, 24217 * MIB, 24217 * MIB)),
    "one-of-two-lost": (H100,),
    "mig-1g-10gb": (SLICE,),
    "gb10": (Gpu("NVIDIA GB10", 121, origin="driver"),),
    "jetson-orin": (Gpu("Orin (nvgpu)", 87, origin="driver"),),
    "wsl": (read("NVIDIA GeForce RTX 3080", 86, 10060 * MIB, 9160 * MIB),),
    "old-bytes": (read("Tesla T4", 75, 15109 * MIB, 15109 * MIB)._replace(memory_kind=TOTAL),),
    "hostile": (read("NVIDIA ]0;H100evil " + 77 * "x", 90, 1000, None)
                ._replace(memory_kind=TOTAL),),
}
NO_MEMORY = ("the driver does not report the memory of GPU 0 ({}). Pass what the engine may use: "
             "--gpu-mem 64GiB")
TOLD = {
    "mixed-3090-4090": [
        "the visible GPUs differ: 0 NVIDIA GeForce RTX 3090 (8.6), 1 NVIDIA GeForce RTX 4090 (8.9)."
        " Show one kind with CUDA_VISIBLE_DEVICES, or name one: --gpu NAME",
        "GPU numbers here are the driver's, in PCI order: without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA"
        " puts the fastest first, and numbers differ. Set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ],
    "one-of-two-lost": [REFUSED["gpu-lost"]],
    "mig-1g-10gb": [
        "GPU 0 (NVIDIA A100-SXM4-80GB) is split into 2 MIG instances: CUDA shows the first, NVIDIA "
        "A100-SXM4-80GB MIG 1g.10gb, and nothing else. Choose one with CUDA_VISIBLE_DEVICES=MIG-..."
        " (nvidia-smi -L lists them)"
    ],
    "gb10": [NO_MEMORY.format("NVIDIA GB10")],
    "jetson-orin": [NO_MEMORY.format("Orin (nvgpu)")],
}

@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replay]:
    """Give a function that puts a recorded machine in NVML's place; all must be shut down again."""
    played: list[FakeNvml] = []
    set_catalogue(monkeypatch, None)
    yield lambda recording, **env: played.append(play(monkeypatch, recording, env))
    assert [fake.open_count for fake in played] == [0] * len(played)


def lines(probe: Probe) -> list[str]:
    return [str(UsageError(problem.message, hint=problem.hint)) for problem in probe.problems]


def refusal(index: int = 0) -> str:
    with pytest.raises(UsageError) as caught:
        probe_gpu(index)
    return str(caught.value)


def test_every_recording_is_replayed() -> None:
    scenarios = {path.stem for path in FOLDER.glob("*.json")} - {"cuda-visible-devices"}
    assert scenarios == set(REFUSED) | set(READ)


@pytest.mark.parametrize("scenario", REFUSED)
def test_refusal_is_one_line_with_a_next_step(replay: Replay, scenario: str) -> None:
    replay(scenario)
    assert refusal() == REFUSED[scenario]
    assert lines(probe_gpus()) == [REFUSED[scenario]]
    assert probe_gpus().gpus == ()


@pytest.mark.parametrize("scenario", READ)
def test_gpus_and_problems(replay: Replay, scenario: str) -> None:
    replay(scenario)
    probe = probe_gpus()
    assert probe.gpus == READ[scenario]
    assert lines(probe) == TOLD.get(scenario, [])
    assert probe_gpu() == READ[scenario][0]
    assert len(probe.cards) == len(probe.gpus)


def test_mig_memory_falls_back_on_the_attributes_not_on_the_card(replay: Replay) -> None:
    recording = load_recording("mig-1g-10gb")
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        recording["devices"][0]["mig"][0][call] = {"error": 4}
    recording["devices"][0]["mig"][0]["nvmlDeviceGetName"] = {"error": 3}
    replay(recording, CUDA_VISIBLE_DEVICES=MIG_0)
    assert probe_gpu() == SLICE._replace(name="NVIDIA A100-SXM4-80GB MIG", memory_free_bytes=None,
                                  memory_kind=TOTAL)


def test_memory_is_what_cuda_offers_and_nvidia_smi_shows_more(replay: Replay) -> None:
    """cuDeviceTotalMem was 150109880320 on the recorded H200s; nvidia-smi shows 143771 MiB."""
    replay("two-h200")
    assert probe_gpu().memory_bytes == 150109880320
    assert probe_gpus().cards[0].nvml_total_bytes == 143771 * MIB
    replay("one-h100")
    assert round((probe_gpu().memory_bytes or 0) / 2**30, 2) == 79.19  # vLLM's own logs


def test_versions_and_further_facts(replay: Replay) -> None:
    replay("one-4090")
    probe = probe_gpus()
    assert (probe.driver, probe.cuda_driver) == ("560.35.03", "12.6")
    only = probe.cards[0]
    assert (only.uuid, only.ecc, only.mig, only.busy_processes) == (A, False, None, 1)
    replay("two-h200")
    probe = probe_gpus()
    assert [(each.ecc, each.mig, each.busy_processes) for each in probe.cards] == [
        (True, False, 0)] * 2
    replay("old-bytes")
    probe = probe_gpus()
    assert (probe.driver, probe.cuda_driver, probe.cards[0].uuid) == ("470.42.01", "11.4", A)
    replay("hostile")
    probe = probe_gpus()
    assert (probe.driver, probe.cuda_driver, probe.cards[0].uuid) == ("550[31m.54", None, None)


@pytest.mark.parametrize("function", DEVICE)
@pytest.mark.parametrize("code", [2, 3, 4, 13, 15, 999])
def test_an_optional_fact_never_costs_the_gpu(replay: Replay, function: str, code: int) -> None:
    recording = load_recording("one-h100")
    recording["devices"][0][function] = {"error": code}
    replay(recording)
    kept = 0 if function == "nvmlDeviceGetCudaComputeCapability" else 1
    assert len(probe_gpus().gpus) == kept


@pytest.mark.parametrize(("answer", "line"), [
    ({"error": 3}, "GPU 0 cannot be read: the driver does not tell its compute capability." + ONE),
    ({"error": 24}, "GPU 0 cannot be read: NVML answers 'NVML Error with code 24'." + ONE),
    ([0, 0], "GPU 0 cannot be read: the driver tells the impossible compute capability 0.0." + ONE),
])
def test_without_a_capability_there_is_no_gpu(replay: Replay, answer: Any, line: str) -> None:
    recording = load_recording("jetson-orin")
    recording["devices"][0]["nvmlDeviceGetCudaComputeCapability"] = answer
    replay(recording)
    assert refusal() == line


def test_driver_that_fails_after_its_start(replay: Replay) -> None:
    replay({"devices": {"error": 999}})
    assert refusal() == REFUSED["container-lost-devices"]


def test_a_lost_gpu_counts_only_when_it_is_asked_for(replay: Replay) -> None:
    replay("one-of-two-lost", CUDA_VISIBLE_DEVICES="0,7")
    assert refusal() == REFUSED["gpu-lost"]
    replay("one-of-two-lost", CUDA_VISIBLE_DEVICES="1")
    assert lines(probe_gpus()) == []


def test_index_beyond_the_last(replay: Replay) -> None:
    replay("two-a100")
    assert probe_gpu(1) == A100
    shows_no = "this machine shows no GPU {0}; wanted an index from 0 to 1; found {0}." + ONE
    assert (refusal(2), refusal(-1)) == (shows_no.format(2), shows_no.format(-1))


@pytest.mark.parametrize(("known", "sm_count", "id"), [
    (Gpu("H100 SXM", 90, 132, id="h100"), 132, "h100"),
    (Gpu("H100 SXM", 90, 132, 80 << 30, id="h100"), 132, "h100"),
    (Gpu("another capability", 89, 128, id="other"), None, None),
    (None, None, None),
])
def test_catalogue_fills_the_sm_count_of_the_same_gpu_only(
        replay: Replay, monkeypatch: pytest.MonkeyPatch, known: Gpu | None, sm_count: int | None,
        id: str | None) -> None:
    replay("one-h100")
    set_catalogue(monkeypatch, known)
    assert probe_gpu() == H100._replace(sm_count=sm_count, id=id)


def test_the_real_catalogue_knows_the_recorded_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counted 132 multiprocessors on the recorded machine."""
    play(monkeypatch, "two-h200", {})
    gpu = probe_gpu()
    assert gpu == H200._replace(sm_count=132, id=gpu.id)


@pytest.mark.parametrize(("module", "told"), [
    (None, "the package nvidia-ml-py is missing. Install nvidia-ml-py"),
    (SimpleNamespace(**dict.fromkeys(NEEDED[:-1])), f"pynvml has no {NEEDED[-1]}. "
     "Install nvidia-ml-py 12.560 or newer in place of older pynvml packages"),
])
def test_pynvml_missing_or_old(monkeypatch: pytest.MonkeyPatch, module: Any, told: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert refusal() == CANNOT + told + OR_NAME


def test_the_real_library_on_this_machine() -> None:
    """Whatever machine runs this: a GPU, or the reason first, and no exception."""
    probe = probe_gpus()
    assert probe.gpus or probe.problems[0].hint.endswith("--gpu 4090, or --capability 8.9")


def test_import_does_not_load_pynvml() -> None:
    code = ("import sys, quantplan.dispatch.gpu_probe; "
            "print(sorted({'pynvml', 'yaml', 'torch', 'numpy'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
