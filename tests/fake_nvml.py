"""A stand-in for pynvml that replays a recorded machine, and the recorder that makes recordings.

`python tests/fake_nvml.py` on a machine with a driver prints its recording: every answer the probe
may ask for, errors as {"error": code}. UUIDs are replaced by invented ones; nothing else that
identifies the machine is read. A replay answers only what was recorded, and only between nvmlInit
and nvmlShutdown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pynvml  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import pytest
    from quantplan.dispatch.facts import Gpu

FOLDER = Path(__file__).parent / "recorded_nvml"
SYSTEM = ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
DEVICE = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
)


class FakeNvml:
    """Replays one recording; give it to sys.modules["pynvml"]."""

    NVMLError = pynvml.NVMLError
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815

    def __init__(self, recording: dict[str, Any]) -> None:
        self.recording = recording
        self.open_count = 0
        self.init_count = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the recorded function NAME; AttributeError for one this pynvml does not offer."""
        if name in self.recording.get("missing_functions", ()):
            raise AttributeError(name)
        if name in SYSTEM:
            return lambda: self._answer(self.recording["system"], name)
        if name in DEVICE:
            return lambda device: self._answer(device, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.init_count += 1
        if (code := self.recording.get("init_error")) is not None:
            raise pynvml.NVMLError(code)
        self.open_count += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check_open()
        self.open_count -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._answer(self.recording, "devices"))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self._handle(self.recording["devices"], index)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any:  # noqa: N802
        return self._handle(device.get("mig", []), index)

    def nvmlDeviceGetMemoryInfo(self, device: Any, version: int | None = None) -> Any:  # noqa: N802
        return self._answer(device, "nvmlDeviceGetMemoryInfo" + ("_v2" if version else ""))

    def _handle(self, devices: list[Any], index: int) -> Any:
        self._check_open()
        if index >= len(devices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        if set(devices[index]) == {"error"}:
            raise pynvml.NVMLError(devices[index]["error"])
        return devices[index]

    def _answer(self, device: dict[str, Any], name: str) -> Any:
        self._check_open()
        answer = device[name]
        if not isinstance(answer, dict):
            return bytes.fromhex(answer[4:]) if str(answer).startswith("hex:") else answer
        if set(answer) == {"error"}:
            raise pynvml.NVMLError(answer["error"])
        return SimpleNamespace(**answer)

    def _check_open(self) -> None:
        if self.open_count == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)


def load_recording(name: str) -> dict[str, Any]:
    """Return the recording tests/recorded_nvml/NAME.json."""
    recording: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return recording


def play(
    monkeypatch: pytest.MonkeyPatch, recording: str | dict[str, Any], env: Mapping[str, str]
) -> FakeNvml:
    """Return the stand-in, put in pynvml's place, with CUDA's variables as in ENV alone."""
    fake = FakeNvml(load_recording(recording) if isinstance(recording, str) else recording)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return fake


def set_catalogue(monkeypatch: pytest.MonkeyPatch, known: Gpu | None) -> None:
    """Put in the catalogue's place one that knows every name as KNOWN, or none."""
    module: Any = ModuleType("quantplan.dispatch.gpu")
    module.driver_gpu = lambda name, memory_bytes: known
    monkeypatch.setitem(sys.modules, module.__name__, module)


def record_machine() -> dict[str, Any]:
    """Return this machine's recording."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"init_error": error.value}
    try:
        count = pynvml.nvmlDeviceGetCount()
        return {
            "system": {name: _ask(getattr(pynvml, name)) for name in SYSTEM},
            "devices": [_record_device(index) for index in range(count)],
        }
    finally:
        pynvml.nvmlShutdown()


def _record_device(index: int) -> dict[str, Any]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return {"error": error.value}
    device = _record_answers(handle, "GPU-" + f"{index:x}" * 8)
    slots = device["nvmlDeviceGetMaxMigDeviceCount"]
    count = slots if type(slots) is int else 0
    instances = [_record_instance(handle, index, slot) for slot in range(count)]
    return {**device, "mig": instances} if instances else device


def _record_instance(parent: Any, parent_index: int, index: int) -> dict[str, Any]:
    try:
        handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
    except pynvml.NVMLError as error:
        return {"error": error.value}
    return _record_answers(handle, "MIG-" + f"{parent_index:x}{index:x}" * 4)


def _record_answers(handle: Any, uuid_head: str) -> dict[str, Any]:
    answers = {name: _ask(_function(name), handle) for name in DEVICE}
    if type(answers["nvmlDeviceGetUUID"]) is str:
        answers["nvmlDeviceGetUUID"] = f"{uuid_head[:12]}-abcd-0000-0000-000000000000"
    return answers


def _function(name: str) -> Callable[..., Any]:
    if name == "nvmlDeviceGetMemoryInfo_v2":
        return lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    function: Callable[..., Any] = getattr(pynvml, name)
    return function


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return _plain(function(*arguments))
    except pynvml.NVMLError as error:
        return {"error": error.value}


def _plain(value: Any) -> Any:
    if hasattr(value, "_fields_"):
        return {field[0]: getattr(value, field[0]) for field in value._fields_}
    if isinstance(value, (list, tuple)):
        return [item if isinstance(item, int) else {} for item in value]
    return value


if __name__ == "__main__":
    print(json.dumps(record_machine(), indent=1))
