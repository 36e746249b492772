"""Which GPUs the probe takes as visible: CUDA_VISIBLE_DEVICES, MIG and CUDA_DEVICE_ORDER."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_nvml import load_recording, play, set_catalogue
from quantplan.dispatch.gpu_probe import Probe, probe_gpu, probe_gpus
from quantplan.tables.errors import UsageError

Patch = pytest.MonkeyPatch
A = "GPU-00000000-abcd-0000-0000-000000000000"
B = "GPU-11111111-abcd-0000-0000-000000000000"
MIG_0 = "MIG-00000000-abcd-0000-0000-000000000000"
MIG_1 = "MIG-01010101-abcd-0000-0000-000000000000"
CUDA_SHOWED = load_recording("cuda-visible-devices")["shown"]
OR_NAME = ", or name a GPU: --gpu 4090, or --capability 8.9"
HIDES = "CUDA_VISIBLE_DEVICES={} hides every GPU of this machine: {}. Unset it" + OR_NAME
ENDS = ("CUDA_VISIBLE_DEVICES={} ends at {}, which names no GPU here: CUDA ignores it and what "
        "follows. Remove the entry, or name a GPU of nvidia-smi -L")


def probe(monkeypatch: Patch, machine: str, **env: str) -> Probe:
    set_catalogue(monkeypatch, None)
    play(monkeypatch, machine, env)
    return probe_gpus()


@pytest.mark.parametrize(("value", "shown"), CUDA_SHOWED)
def test_visible_devices_as_cuda_reads_them(
        monkeypatch: Patch, value: str, shown: list[int]) -> None:
    seen = probe(monkeypatch, "two-h200", CUDA_VISIBLE_DEVICES=value)
    assert [card.number for card in seen.cards] == shown


@pytest.mark.parametrize(("value", "told"), [
    ("", [HIDES.format('""', '"" names none')]),
    ("-1", [HIDES.format('"-1"', '"-1" names none')]),
    ("7,0", [HIDES.format('"7,0"', '"7" names none')]),
    ("0,0", [HIDES.format('"0,0"', '"0" names a GPU again')]),
    ("GPU-", [HIDES.format('"GPU-"', '"GPU-" names none')]),
    ("\x1b[3" + "9" * 200, [HIDES.format(f'"[3{"9" * 94}"', f'"[3{"9" * 94}" names none')]),
    ("0,7,1", [ENDS.format('"0,7,1"', '"7"')]),
    ("1,", []),
])
def test_visible_devices_messages(monkeypatch: Patch, value: str, told: list[str]) -> None:
    seen = probe(monkeypatch, "two-h200", CUDA_VISIBLE_DEVICES=value)
    assert [f"{problem.message}. {problem.hint}" for problem in seen.problems] == told
    if not seen.gpus:
        with pytest.raises(UsageError) as caught:
            probe_gpu()
        assert str(caught.value) == told[0]


@pytest.mark.parametrize(("value", "uuids", "told"), [
    (MIG_1, [MIG_1], []),
    (MIG_1[:10], [MIG_1], []),
    (f"MIG-{A}/8/0", [MIG_1], []),
    (f"MIG-{A}/9/0", [], ["visible-none"]),
    (f"{MIG_1},{MIG_0}", [MIG_1], ["mig-one"]),
    ("0", [MIG_0], ["mig-on"]),
    (A, [MIG_0], ["mig-on"]),
    ("1,0", [MIG_0], ["mig-on"]),
    ("1", [B], []),
])
def test_mig_selection(monkeypatch: Patch, value: str, uuids: list[str], told: list[str]) -> None:
    seen = probe(monkeypatch, "mig-1g-10gb", CUDA_VISIBLE_DEVICES=value)
    assert [card.uuid for card in seen.cards] == uuids
    assert [problem.id for problem in seen.problems] == told
    instance = ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 14)
    assert [(gpu.name, gpu.sm_count) for gpu in seen.gpus] == [
        ("NVIDIA A100-SXM4-80GB", None) if uuid == B else instance for uuid in uuids]


@pytest.mark.parametrize(("env", "told"), [
    ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["mixed-gpus"]),
    ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, ["mixed-gpus", "device-order"]),
    ({"CUDA_VISIBLE_DEVICES": "0"}, ["device-order"]),
    ({"CUDA_VISIBLE_DEVICES": B}, []),
])
def test_device_order(monkeypatch: Patch, env: dict[str, str], told: list[str]) -> None:
    seen = probe(monkeypatch, "mixed-3090-4090", **env)
    assert [problem.id for problem in seen.problems] == told
