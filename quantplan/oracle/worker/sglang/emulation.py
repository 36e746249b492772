"""A machine with an NVIDIA GPU for SGLang, on any machine: packages, device, and no server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from quantplan.oracle.worker import device
from quantplan.oracle.worker.modules import imported
from quantplan.oracle.worker.sglang.packages import TURNED_OFF_BY, hide_from_others, sglang_shelf

SHARED = ("torch._dynamo", "torch._inductor.compile_fx", "fastapi", "openai.types.chat",
          "openai.types.responses", "aiohttp", "prometheus_client", "zmq", "compressed_tensors",
          "transformers.processing_utils")
"""What the engine imports of others: imported once for all machines."""

VARIABLES: Mapping[str, str] = {
    "TOKENIZERS_PARALLELISM": "false", "FLASHINFER_DISABLE_VERSION_CHECK": "1",
    "CUDA_HOME": "/nonexistent"}
"""Variables of other packages, which no choice reads."""


class Emulation:
    """The emulated machine. Made once before forking; a child says which machine it is."""

    def __init__(self) -> None:
        self.capability = (9, 0)
        imported("torch")
        device.emulate_device(lambda: self.capability)
        _emulate_runtime(lambda: self.capability)
        imported("transformers.models.auto.modeling_auto")
        for name in SHARED:
            with suppress(ImportError):
                imported(name)
        self.shelf = sglang_shelf()
        hide_from_others(self.shelf)

    def enter(self, machine: Mapping[str, Any]) -> None:
        """Be this machine, before anything of the engine is imported."""
        self.capability = divmod(machine["capability"], 10)
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        for library, variable in TURNED_OFF_BY.items():
            if not machine["libs"].get(library, True):
                os.environ[variable] = "false"
        self.shelf.stock({name: there for name, there in machine["libs"].items()
                          if name not in TURNED_OFF_BY})


def _always(value: Any) -> Callable[..., Any]:
    return lambda *given, **named: value


def _emulate_runtime(capability: device.Capability) -> None:
    """Make torch say that its CUDA runtime is up, on a device of nobody else."""
    cuda = imported("torch").cuda
    answers = {"is_available": True, "is_initialized": True, "init": None, "_lazy_init": None,
               "memory_allocated": 0, "max_memory_allocated": 0,
               "is_current_stream_capturing": False, "device": device.Nothing()}
    for name, value in answers.items():
        setattr(cuda, name, _always(value))
    cuda.get_arch_list = lambda: ["sm_{}{}".format(*capability())]
