"""A CUDA device that is not there: what torch, Triton and Humming say about it.

Capability is the question's. The other figures are of an H100 and decide no selection: they size
workspaces and streams that a model's constructor makes.
"""

from __future__ import annotations

import importlib.util
import os
import types
from collections.abc import Callable
from typing import Any

from quantplan.oracle.worker.modules import imported

MEMORY_BYTES = 80 << 30
SM_COUNT = 132
SHARED_MEMORY_BYTES = 227 << 10
L2_BYTES = 50 << 20
DEVICES = 8
NAME = "emulated"
CUDA_VERSION = "13.0"
"""The CUDA version that the wheels were built for."""

STREAMS = ("stream", "current_stream", "default_stream")
ACTIONS = ("set_stream", "synchronize", "set_device", "set_device_index", "empty_cache")

Capability = Callable[[], tuple[int, int]]


class Nothing:
    """A stream, event or driver: takes every call and does nothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.device, self.stream_id, self.cuda_stream = "cuda:0", 0, 0

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *raised: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return do_nothing


class Event(Nothing):
    """A CUDA event, which is not a stream."""


def do_nothing(*arguments: Any, **named: Any) -> None:
    """Do nothing."""


def _always(value: Any) -> Callable[..., Any]:
    """Return a new function that answers VALUE: torch wants each of its names to be another one."""
    return lambda *arguments, **named: value


def emulate_device(capability: Capability) -> None:
    """Make torch and Triton speak of a device of `capability()`."""
    torch = imported("torch")
    torch.set_num_threads(1)
    torch.version.cuda = CUDA_VERSION
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in range(DEVICES))
    _emulate_queries(torch, capability)
    _emulate_streams(torch)
    _emulate_triton(capability)
    _declare_vision_operators(torch)


def _properties(capability: tuple[int, int]) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        major=capability[0], minor=capability[1], multi_processor_count=SM_COUNT, is_integrated=0,
        total_memory=MEMORY_BYTES, name=NAME, L2_cache_size=L2_BYTES,
        shared_memory_per_block_optin=SHARED_MEMORY_BYTES)


def _emulate_queries(torch: Any, capability: Capability) -> None:
    memory = (MEMORY_BYTES, MEMORY_BYTES)
    _set(torch.cuda, get_device_properties=lambda *device: _properties(capability()),
         get_device_capability=lambda *device: capability(), current_device=_always(0),
         device_count=_always(DEVICES), get_device_name=_always(NAME),
         mem_get_info=_always(memory))
    _set(torch.accelerator, device_count=_always(DEVICES), is_available=_always(True),
         current_accelerator=_always(torch.device("cuda")), current_device_index=_always(0),
         get_memory_info=_always(memory))


def _emulate_streams(torch: Any) -> None:
    stream = Nothing()
    _set(torch.cuda, Stream=Nothing, Event=Event)
    _set(torch.cuda, **{name: _always(stream) for name in STREAMS})
    _set(torch.accelerator, current_stream=_always(stream), device_index=_always(stream))
    for owner in (torch.cuda, torch.accelerator):
        _set(owner, **{name: _always(None) for name in ACTIONS if hasattr(owner, name)})


def _set(owner: Any, **attributes: Any) -> None:
    for name, value in attributes.items():
        setattr(owner, name, value)


def _emulate_triton(capability: Capability) -> None:
    """Triton compiles nothing here, but the engine asks whether one driver is active."""
    compiler = imported("triton.backends.compiler")
    nvidia = imported("triton.backends.nvidia.driver")
    runtime = imported("triton.runtime")
    nvidia.CudaDriver.is_active = staticmethod(lambda: True)

    class Driver(Nothing):
        def get_current_target(self) -> Any:
            major, minor = capability()
            return compiler.GPUTarget("cuda", major * 10 + minor, 32)

        def get_current_device(self) -> int:
            return 0

    runtime.driver.set_active(Driver())


def _declare_vision_operators(torch: Any) -> None:
    """torchvision's import registers on operators that its CUDA build defines and a CPU torch
    cannot load."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return
    try:
        torch.ops.load_library(os.path.join(spec.submodule_search_locations[0], "_C.so"))
    except (OSError, RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.ops.torchvision.kept_by_quantplan = library


def emulate_humming(capability: Capability) -> None:
    """Humming asks the device through its own bindings."""
    if importlib.util.find_spec("humming") is None:
        return
    device = imported("humming.device")

    def value(self: Any) -> types.SimpleNamespace:
        major, minor = capability()
        return types.SimpleNamespace(
            index=0, name=NAME, is_ppu=False, sm_count=SM_COUNT, sm_major=major,
            sm_minor=minor, sm_version=major * 10 + minor, max_threads_per_block=1024,
            max_threads_per_sm=2048, max_registers_per_sm=65536, l2_cache_size=L2_BYTES,
            max_smem_size=SHARED_MEMORY_BYTES, max_smem_size_kb=SHARED_MEMORY_BYTES / 1024)

    if hasattr(device, "DeviceInfo"):
        device.DeviceInfo._get_value = value
