"""An NVIDIA GPU machine on any machine: packages, operators, device, and the engine's platform."""

from __future__ import annotations

import os
import shutil
import time
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from quantplan.oracle.worker import device
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.vllm.extensions import declare_operators
from quantplan.oracle.worker.vllm.packages import vllm_shelf

CUBINS, COMPILED = "cubins", "compiled"
SHARED = ("torch._dynamo", "torch._inductor.compile_fx", "torchvision.transforms.v2", "fastapi",
          "openai.types.chat", "openai.types.responses", "aiohttp", "prometheus_client", "xgrammar",
          "llguidance", "transformers.processing_utils")
"""What the engine imports of others: imported once, it halves the import on every machine."""


class Emulation:
    """The emulated machine. Made once before forking; a child says which machine it is."""

    def __init__(self) -> None:
        self.capability = (9, 0)
        self.shelf = vllm_shelf()
        imported("torch")
        device.emulate_device(lambda: self.capability)
        # Transformers looks for optional packages once: it must see none of the stand-ins.
        imported("transformers.models.auto.modeling_auto")
        self.kept = declare_operators()
        for name in SHARED:
            with suppress(ImportError):
                imported(name)

    def enter(self, machine: Mapping[str, Any]) -> None:
        """Be this machine, before anything of the engine is imported."""
        self.capability = divmod(machine["capability"], 10)
        kernels = _kernel_source(machine["libs"])
        self.shelf.stock({**machine["libs"], "flashinfer": kernels == CUBINS})
        _offer_compilers(kernels == COMPILED)
        vars(time)["sleep"] = _at_once
        _answer_for_the_server(machine["libs"].get("nvidia_artifactory", False))
        device.emulate_humming(lambda: self.capability)
        self._install_platform(machine["gpu"])

    def _install_platform(self, name: str) -> None:
        """Make the engine's own CUDA platform current, with the device's answers filled in."""
        platforms = imported("vllm.platforms")
        cuda = imported("vllm.platforms.cuda")
        interface = imported("vllm.platforms.interface")
        capability = interface.DeviceCapability(*self.capability)
        answers = {
            "get_device_capability": capability, "get_device_name": name,
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


def _kernel_source(libs: Mapping[str, bool]) -> str | None:
    """Return what makes FlashInfer usable: its package of compiled kernels, which also answers for
    NVIDIA's server, or a compiler; None where nothing does."""
    if not libs.get("flashinfer"):
        return None
    return CUBINS if libs.get("nvidia_artifactory", True) else COMPILED


def _offer_compilers(there: bool) -> None:
    which = shutil.which
    vars(shutil)["which"] = lambda name, *given, **named: (
        (name if there else None) if os.path.basename(name) in ("ninja", "nvcc")
        else which(name, *given, **named))


def _at_once(seconds: float) -> None:
    """Do not wait: what the engine tries again and again, files of the hub, is not there."""


def _answer_for_the_server(there: bool) -> None:
    """Nothing here asks a network."""
    requests = imported("requests")
    requests.get = lambda *given, **named: types.SimpleNamespace(status_code=200 if there else 404)
