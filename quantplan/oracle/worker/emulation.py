"""An NVIDIA GPU machine on any machine: packages, operators, device, and the engine's platform."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from quantplan.oracle.worker import device
from quantplan.oracle.worker.extensions import declare_operators
from quantplan.oracle.worker.packages import HARD_REQUIREMENTS, Shelf


class Emulation:
    """The emulated machine. Made once before forking; a child says which machine it is."""

    def __init__(self) -> None:
        self.capability = (9, 0)
        self.shelf = Shelf()
        importlib.import_module("torch")
        device.emulate_device(lambda: self.capability)
        # Transformers looks for optional packages once: it must see none of the stand-ins.
        importlib.import_module("transformers.models.auto.modeling_auto")
        self.kept = declare_operators()

    def enter(self, machine: Mapping[str, Any]) -> None:
        """Be this machine, before anything of the engine is imported."""
        self.capability = divmod(machine["capability"], 10)
        named = machine["libs"]
        self.shelf.present = frozenset(
            {name for name, there in named.items() if there}
            | {name for name in HARD_REQUIREMENTS if name not in named})
        usable = "flashinfer" in self.shelf.present
        os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = "1" if usable else "0"
        device.emulate_humming(lambda: self.capability)
        self._install_platform()

    def _install_platform(self) -> None:
        """Make the engine's own CUDA platform current, with the device's answers filled in."""
        platforms = importlib.import_module("vllm.platforms")
        cuda = importlib.import_module("vllm.platforms.cuda")
        interface = importlib.import_module("vllm.platforms.interface")
        capability = interface.DeviceCapability(*self.capability)
        answers = {
            "get_device_capability": capability, "get_device_name": "emulated",
            "get_device_uuid": "GPU-emulated", "get_device_total_memory": device.MEMORY_BYTES,
            "is_fully_connected": True, "device_count": device.DEVICES,
            "num_compute_units": device.SM_COUNT, "is_integrated_gpu": False,
            "is_arch_support_pdl": self.capability >= (9, 0),
            "get_cuda_runtime_major": int(device.CUDA_VERSION.split(".")[0]), "log_warnings": None,
            "get_device_numa_node": None, "get_all_device_numa_nodes": None,
        }
        emulated = type("EmulatedCudaPlatform", (cuda.CudaPlatformBase,),
                        {name: classmethod(_answering(value)) for name, value in answers.items()})
        platforms._current_platform = emulated()


def _answering(value: Any) -> Any:
    def answer(cls: Any, *arguments: Any, **named: Any) -> Any:
        return value
    return answer
